/* data_op.c - one operation of NNG in flight. */
#include "transport/nng/data.h"

/* On one of NNG's threads. */
static void op_on_end(void *arg)
{
    nngd_op *op = arg;

    /* release: result and bytes are there for whoever sees the operation idle. */
    atomic_store_explicit(&op->busy, false, memory_order_release);
}

int nngd_op_open(nngd_op *op)
{
    atomic_init(&op->busy, false);
    int rc = nng_aio_alloc(&op->aio, op_on_end, op);
    if (rc == 0)
        nng_aio_set_timeout(op->aio,
                            NNG_DURATION_INFINITE); /* streams end them, or nngd_op_close */
    return rc;
}

void nngd_op_begin(nngd_op *op)
{
    assert(!atomic_load_explicit(&op->busy, memory_order_relaxed));
    atomic_store_explicit(&op->busy, true, memory_order_relaxed);
}

bool nngd_op_is_idle(const nngd_op *op)
{
    return !atomic_load_explicit(&op->busy, memory_order_acquire);
}

void nngd_op_close(nngd_op *op)
{
    if (op->aio == NULL)
        return;
    nng_aio_stop(op->aio);
    nng_aio_free(op->aio);
    op->aio = NULL;
}
