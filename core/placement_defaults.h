/* placement_defaults.h - what a placement is before the file says anything. For placement*.c. */
#ifndef TR_CORE_PLACEMENT_DEFAULTS_H
#define TR_CORE_PLACEMENT_DEFAULTS_H

#include "core/placement.h"

/* No model, no nodes, every other member as its comment in placement.h says. Thread: any. */
void tr_placement_default(tr_placement *placement);

/* A node without name and control URL. Thread: any. */
void tr_placement_default_node(tr_placement_node *node);

#endif
