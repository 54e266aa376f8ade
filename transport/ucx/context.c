/* context.c - UCX's own objects and every setting that Troupe relies on.
 *
 * All settings are made here, in the program, so that variables of the user's environment cannot
 * change how Troupe behaves by accident. */
#include "transport/ucx/internal.h"

#include <stdio.h>
#include <string.h>

#define SHM_PIECE_KIB        33
#define SHM_PIECES           128
#define SHM_QUEUE_MAX        256 /* places: 64 with UCX 1.13, later ones may have more */
#define TCP_PIECE_KIB        68
#define TEXT_OF(number)      TEXT_OF_TOKEN(number)
#define TEXT_OF_TOKEN(token) #token

/* What a worker takes before anything has come: 1.8 MiB with UCX 1.13, of which 1.5 are the
 * handlers of 65,536 ids. */
#define WORKER_SIZE  (2u << 20)
#define LIBRARY_SIZE (4u << 20) /* code and tables */

typedef struct {
    const char *name, *value;
} context_setting;

static const context_setting context_settings[] = {
    /* A killed peer is noticed after one to two of these over shared memory (20 s by default). */
    {"KEEPALIVE_INTERVAL", "500ms"},
    /* Variables of other UCX versions are none of our users' business. */
    {"WARN_UNUSED_ENV_VARS", "n"},
    {"RNDV_THRESH", "auto"},
    {"RNDV_SCHEME", "auto"},
    {"ZCOPY_THRESH", "auto"},
    {"SHM_DEVICES", "all"},
};

/* Without this, posix and sysv do not offer the error handling that we ask for, and UCX silently
 * talks TCP between processes of one machine (openucx/ucx#6595). */
static const context_setting context_shm_settings[] = {
    {"MM_ERROR_HANDLING", "y"},
    /* A row of 32 KiB and its header lie in one piece. With 8256 bytes, the default, a row of 8 KiB
     * and our header are two, which the receiver first puts together: 1.5 us a hop instead of 1.2,
     * and 8.7 us instead of 4.2 for 64 KiB. Note: from 64 KiB on UCX 1.13 cuts lengths to 16 bits.
     */
    {"MM_SEG_SIZE", TEXT_OF(SHM_PIECE_KIB) "k"},
    {"MM_RX_BUFS_GROW", TEXT_OF(SHM_PIECES)}, /* at a time: 4 MB, not 512 of them */
};

/* A row of 64 KiB and its header leave in one piece: 50 us a round trip instead of 140 us. Up to
 * 1.16 uct options are known by their short names only, from then on by the long ones. */
static const context_setting context_tcp_settings[] = {
    {"RX_SEG_SIZE", TEXT_OF(TCP_PIECE_KIB) "k"},
    {"TX_SEG_SIZE", TEXT_OF(TCP_PIECE_KIB) "k"},
};
static const context_setting context_tcp_settings_1_17[] = {
    {"TCP_RX_SEG_SIZE", TEXT_OF(TCP_PIECE_KIB) "k"},
    {"TCP_TX_SEG_SIZE", TEXT_OF(TCP_PIECE_KIB) "k"},
};

#define CONTEXT_COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))

/* What waits while our pool has no buffer stays in pieces that UCX received it in, which it never
 * gives back to the system: at most a window from every peer. Over shared memory a message fits one
 * piece, or was put together from two on the heap; over TCP it fits one larger piece. A peer has
 * one of the two, and the first costs more. Besides, every place of the queue through which the
 * peer writes into shared memory has a piece. */
uint64_t ucx_context_bytes(uint32_t nodes_count)
{
    const uint64_t grown = (UCX_WINDOW + SHM_QUEUE_MAX + SHM_PIECES - 1) / SHM_PIECES;
    const uint64_t peer = WORKER_SIZE + grown * SHM_PIECES * SHM_PIECE_KIB * 1024 +
                          (uint64_t)UCX_WINDOW * UCX_EAGER_MAX;

    static_assert(TCP_PIECE_KIB <= SHM_PIECE_KIB + UCX_EAGER_MAX / 1024, "TCP's are the smaller");
    return LIBRARY_SIZE + (nodes_count - 1) * peer;
}

/* Whether a list of UCX transports, which may be negated, brings in one of the named ones. */
static bool context_uses(const char *tls, const char *const *names)
{
    bool negated = tls[0] == '^';
    bool found = strstr(tls, "all") != NULL;

    for (size_t i = 0; names[i] != NULL; i++)
        if (strstr(tls, names[i]) != NULL)
            found = true;
    return negated || found;
}

static tr_status context_set(ucp_config_t *config, const context_setting *settings, size_t count,
                             tr_error *err)
{
    for (size_t i = 0; i < count; i++) {
        ucs_status_t status = ucp_config_modify(config, settings[i].name, settings[i].value);
        if (status != UCS_OK)
            return tr_fail(err, TR_E_INVALID, "ucx: setting %s=%s: %s", settings[i].name,
                           settings[i].value, ucs_status_string(status));
    }
    return TR_OK;
}

/* Note: UCX warns about a setting of a transport that is not opened, so each is made only when the
 * list can bring that transport in. */
static tr_status context_configure(ucp_config_t *config, const char *tls, const char *devices,
                                   tr_error *err)
{
    static const char *const shm_names[] = {"posix", "sysv", "shm", "sm", "mm", NULL};
    static const char *const tcp_names[] = {"tcp", NULL};
    const context_setting chosen[] = {{"TLS", tls}, {"NET_DEVICES", devices}};
    unsigned major, minor, release;

    tr_status status = context_set(config, chosen, CONTEXT_COUNT(chosen), err);
    if (status == TR_OK)
        status = context_set(config, context_settings, CONTEXT_COUNT(context_settings), err);
    if (status == TR_OK && context_uses(tls, shm_names))
        status =
            context_set(config, context_shm_settings, CONTEXT_COUNT(context_shm_settings), err);
    ucp_get_version(&major, &minor, &release);
    if (status == TR_OK && context_uses(tls, tcp_names))
        status = context_set(
            config, major == 1 && minor < 17 ? context_tcp_settings : context_tcp_settings_1_17,
            CONTEXT_COUNT(context_tcp_settings), err);
    return status;
}

/* The pool's memory is registered once, so that a card finds its pages already pinned. */
static tr_status context_map_pool(tr_transport *t, tr_error *err)
{
    void *base;
    size_t size;

    tr_pool_memory(t->config.pool, &base, &size);
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = base,
        .length = size,
    };
    ucs_status_t status = ucp_mem_map(t->context, &params, &t->pool_memory);
    if (status != UCS_OK)
        return tr_fail(err, TR_E_NOMEM, "ucx: registering the pool's %zu bytes: %s", size,
                       ucs_status_string(status));
    return TR_OK;
}

tr_status ucx_worker_open(tr_transport *t, uint32_t node_index, tr_error *err)
{
    ucx_worker *worker = &t->workers[node_index];
    /* One thread at a time, but not always the same: the one that opens does not poll. */
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};

    ucs_status_t ucs = ucp_worker_create(t->context, &params, &worker->handle);
    if (ucs != UCS_OK) {
        worker->handle = NULL;
        return tr_fail(err, TR_E_INVALID, "ucx: worker: %s", ucs_status_string(ucs));
    }
    ucs = ucp_worker_query(worker->handle, &attr);
    if (ucs != UCS_OK) {
        ucx_worker_close(t, node_index);
        return tr_fail(err, TR_E_INVALID, "ucx: worker address: %s", ucs_status_string(ucs));
    }
    worker->address = attr.address;
    worker->address_size = attr.address_length;
    tr_status status = ucx_receive_register(t, node_index, err);
    if (status != TR_OK)
        ucx_worker_close(t, node_index);
    return status;
}

void ucx_worker_close(tr_transport *t, uint32_t node_index)
{
    ucx_worker *worker = &t->workers[node_index];

    if (worker->address != NULL)
        ucp_worker_release_address(worker->handle, worker->address);
    if (worker->handle != NULL)
        ucp_worker_destroy(worker->handle);
    *worker = (ucx_worker){.handle = NULL};
}

tr_status ucx_context_open(tr_transport *t, const char *tls, const char *devices, tr_error *err)
{
    ucp_config_t *config;

    ucs_status_t ucs = ucp_config_read(NULL, NULL, &config);
    if (ucs != UCS_OK)
        return tr_fail(err, TR_E_INVALID, "ucx: reading the configuration: %s",
                       ucs_status_string(ucs));
    tr_status status = context_configure(config, tls, devices, err);
    if (status == TR_OK) {
        ucp_params_t params = {
            .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
            .features = UCP_FEATURE_AM,
            .estimated_num_eps = t->config.nodes_count,
        };
        ucs = ucp_init(&params, config, &t->context);
        if (ucs != UCS_OK)
            status = tr_fail(err, TR_E_INVALID, "ucx: tls=%s, devices=%s: %s", tls, devices,
                             ucs_status_string(ucs));
    }
    ucp_config_release(config);
    if (status != TR_OK)
        return status;

    status = context_map_pool(t, err);
    if (status != TR_OK)
        ucp_cleanup(t->context);
    return status;
}

void ucx_context_close(tr_transport *t)
{
    (void)ucp_mem_unmap(t->context, t->pool_memory); /* the context goes in any case */
    ucp_cleanup(t->context);
}
