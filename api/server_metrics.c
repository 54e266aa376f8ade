#include "api/server_metrics.h"

#include "core/runtime_metrics.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Metrics that this file adds itself. */
#define OWN_METRICS (TR_CLUSTER_FIGURES_COUNT + 16)

/* A page grows between its two readings by longer numbers at most. */
#define PAGE_SLACK 4096

/* From 1 ms to two minutes, in steps of about three: a first token can take a long prefill. */
static const uint64_t token_bounds_ns[] = {1000000,     3000000,     10000000,    30000000,
                                           100000000,   300000000,   1000000000,  3000000000,
                                           10000000000, 30000000000, 120000000000};
#define TOKEN_BOUNDS_COUNT (sizeof(token_bounds_ns) / sizeof(token_bounds_ns[0]))

#define FIGURE(member) offsetof(tr_cluster_stat, member), sizeof(((tr_cluster_stat *)0)->member)

static const struct {
    const char *name, *help;
    bool counter;
    size_t offset, size;
} cluster_rows[] = {
    {"troupe_sequences_active", "Sequences that hold a slot.", false, FIGURE(sequences_active)},
    {"troupe_sequences_max", "Slots for sequences.", false, FIGURE(sequences_max)},
    {"troupe_requests_waiting", "Requests without a slot yet.", false, FIGURE(requests_waiting)},
    {"troupe_prefixes_kept", "Prompts whose state is kept for later ones.", false,
     FIGURE(prefixes_kept)},
    {"troupe_kv_pages_used", "Pages of this node's KV pool in use.", false, FIGURE(kv_pages_used)},
    {"troupe_kv_pages_max", "Pages of this node's KV pool.", false, FIGURE(kv_pages_max)},
    {"troupe_steps_total", "Steps begun.", true, FIGURE(steps)},
    {"troupe_prompt_tokens_total", "Prompt tokens computed.", true, FIGURE(prompt_tokens)},
    {"troupe_cached_tokens_total", "Prompt tokens taken from kept prompts.", true,
     FIGURE(cached_tokens)},
    {"troupe_generated_tokens_total", "Tokens generated.", true, FIGURE(generated_tokens)},
    {"troupe_requests_finished_total", "Requests that ended well.", true,
     FIGURE(requests_finished)},
    {"troupe_requests_failed_total", "Requests that ended with an error.", true,
     FIGURE(requests_failed)},
};
static_assert(sizeof(cluster_rows) / sizeof(cluster_rows[0]) == TR_CLUSTER_FIGURES_COUNT,
              "one figure per row");

static uint64_t metrics_read_figure(const void *ctx)
{
    const tr_cluster_figure *figure = ctx;
    tr_cluster_stat stat;
    uint64_t wide = 0;
    uint32_t narrow = 0;
    tr_cluster_stats(figure->cluster, &stat);
    if (figure->size == sizeof(wide)) {
        memcpy(&wide, (const char *)&stat + figure->offset, sizeof(wide));
        return wide;
    }
    assert(figure->size == sizeof(narrow));
    memcpy(&narrow, (const char *)&stat + figure->offset, sizeof(narrow));
    return narrow;
}

static tr_status metrics_add_cluster(tr_server_metrics *m, tr_cluster *cluster, tr_error *err)
{
    tr_status status = TR_OK;
    for (size_t i = 0; i < TR_CLUSTER_FIGURES_COUNT && status == TR_OK; i++) {
        tr_metric_name name = {.name = cluster_rows[i].name, .help = cluster_rows[i].help};
        m->figures[i] = (tr_cluster_figure){
            .cluster = cluster, .offset = cluster_rows[i].offset, .size = cluster_rows[i].size};
        status = cluster_rows[i].counter
                     ? tr_metrics_counter_from(m->registry, &name, metrics_read_figure,
                                               &m->figures[i], err)
                     : tr_metrics_gauge_from(m->registry, &name, metrics_read_figure,
                                             &m->figures[i], err);
    }
    return status;
}

static tr_status metrics_add_http(tr_server_metrics *m, tr_error *err)
{
    const struct {
        tr_gauge **gauge;
        tr_counter **counter;
        tr_histogram **histogram;
        const char *name, *help;
    } rows[] = {
        {.gauge = &m->connections,
         .name = "troupe_http_connections",
         .help = "Open HTTP connections."},
        {.gauge = &m->in_flight,
         .name = "troupe_http_requests_in_flight",
         .help = "Completions and chats being answered."},
        {.counter = &m->requests,
         .name = "troupe_http_requests_total",
         .help = "Completions and chats asked for."},
        {.counter = &m->refused,
         .name = "troupe_http_refused_total",
         .help = "Of these, answered with an error before any token."},
        {.counter = &m->canceled,
         .name = "troupe_http_canceled_total",
         .help = "Of these, given up because the client left or read too slowly."},
        {.histogram = &m->first_token,
         .name = "troupe_first_token_seconds",
         .help = "Time from a request to its first token."},
        {.histogram = &m->next_token,
         .name = "troupe_next_token_seconds",
         .help = "Time from a token to the next one of the same request."},
    };
    tr_status status = TR_OK;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && status == TR_OK; i++) {
        tr_metric_name name = {.name = rows[i].name, .help = rows[i].help};
        if (rows[i].gauge != NULL)
            status = tr_metrics_gauge(rows[i].gauge, m->registry, &name, err);
        else if (rows[i].counter != NULL)
            status = tr_metrics_counter(rows[i].counter, m->registry, &name, err);
        else
            status = tr_metrics_histogram(rows[i].histogram, m->registry, &name, token_bounds_ns,
                                          TOKEN_BOUNDS_COUNT, 1e-9, err);
    }
    return status;
}

tr_status tr_server_metrics_open(tr_server_metrics *m, tr_cluster *cluster, tr_error *err)
{
    tr_runtime *runtime = tr_cluster_runtime(cluster);
    uint32_t actors_count = tr_runtime_stats(runtime, NULL, 0);
    *m = (tr_server_metrics){0};
    tr_status status =
        tr_metrics_open(&m->registry, OWN_METRICS + TR_RUNTIME_METRICS(actors_count), err);
    if (status != TR_OK)
        return status;
    status = metrics_add_http(m, err);
    if (status == TR_OK)
        status = metrics_add_cluster(m, cluster, err);
    if (status == TR_OK)
        status = tr_runtime_register_metrics(runtime, m->registry, err);
    if (status != TR_OK)
        tr_server_metrics_close(m);
    return status;
}

void tr_server_metrics_close(tr_server_metrics *m)
{
    if (m->registry != NULL)
        tr_metrics_close(m->registry);
    m->registry = NULL;
}

char *tr_server_metrics_page(const tr_server_metrics *m, size_t *size)
{
    size_t capacity = tr_metrics_write(m->registry, NULL, 0) + PAGE_SLACK;
    char *page = malloc(capacity);
    if (page == NULL)
        return NULL;
    size_t written = tr_metrics_write(m->registry, page, capacity);
    *size = written < capacity ? written : strlen(page); /* whole lines in any case */
    return page;
}
