/* server_metrics.h - the node's metrics page: figures of the HTTP side, of the cluster and of the
 * runtime in one registry (core/metrics.h), read by GET /metrics. */
#ifndef TR_API_SERVER_METRICS_H
#define TR_API_SERVER_METRICS_H

#include "actors/cluster.h"
#include "core/metrics.h"

#include <stddef.h>

/* Where one figure of tr_cluster_stat is found. */
typedef struct {
    tr_cluster *cluster; /* borrows */
    size_t offset;
    size_t size; /* 4 or 8 bytes */
} tr_cluster_figure;

#define TR_CLUSTER_FIGURES_COUNT 12

typedef struct {
    tr_metrics *registry; /* owns, and with it all that follow */
    tr_gauge *connections;
    tr_gauge *in_flight;       /* completions and chats being answered */
    tr_counter *requests;      /* completions and chats asked for */
    tr_counter *refused;       /* of these, answered with an error before any token */
    tr_counter *canceled;      /* of these, given up: the client left or read too slowly */
    tr_histogram *first_token; /* nanoseconds from the request to its first token */
    tr_histogram *next_token;  /* nanoseconds from a token to the next one */
    tr_cluster_figure figures[TR_CLUSTER_FIGURES_COUNT];
} tr_server_metrics;

/* Registers all figures. Before the cluster starts; m stays where it is until it is closed. */
tr_status tr_server_metrics_open(tr_server_metrics *m, tr_cluster *cluster, tr_error *err);

/* Closing what was never opened (zeroed) is allowed. */
void tr_server_metrics_close(tr_server_metrics *m);

/* The page: malloc'ed, [*size]; NULL when there is no memory. */
char *tr_server_metrics_page(const tr_server_metrics *m, size_t *size);

#endif
