/* transport.c - the list of transports of this build. A new one is a line here. */
#include "transport/transport.h"

#include "transport/loop/loop.h"
#include "transport/nng/data_nng.h"
#ifdef TR_HAVE_UCX
#include "transport/ucx/ucx.h"
#endif

#include <string.h>

const tr_transport_ops *const tr_transports[] = {
    &tr_loop_ops,
#ifdef TR_HAVE_UCX
    &tr_ucx_ops,
#endif
    &tr_nng_ops,
    NULL,
};

const tr_transport_ops *tr_transport_find(const char *name)
{
    for (size_t i = 0; tr_transports[i] != NULL; i++)
        if (strcmp(tr_transports[i]->name, name) == 0)
            return tr_transports[i];
    return NULL;
}
