/* jinja_filters.h - the filters that walk over sequences, for the table in jinja_filters.c. */
#ifndef TR_CORE_MODEL_JINJA_FILTERS_H
#define TR_CORE_MODEL_JINJA_FILTERS_H

#include "core/model/jinja_builtins.h"

bool tj_filter_dictsort(tj_call *c);
bool tj_filter_first(tj_call *c);
bool tj_filter_items(tj_call *c);
bool tj_filter_join(tj_call *c);
bool tj_filter_last(tj_call *c);
bool tj_filter_list(tj_call *c);
bool tj_filter_map(tj_call *c);
bool tj_filter_max(tj_call *c);
bool tj_filter_min(tj_call *c);
bool tj_filter_reject(tj_call *c);
bool tj_filter_rejectattr(tj_call *c);
bool tj_filter_reverse(tj_call *c);
bool tj_filter_select(tj_call *c);
bool tj_filter_selectattr(tj_call *c);
bool tj_filter_sort(tj_call *c);
bool tj_filter_sum(tj_call *c);
bool tj_filter_unique(tj_call *c);

#endif
