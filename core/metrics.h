/* metrics.h - counters, gauges and histograms, and the page that shows them.
 *
 * A registry belongs to one node. Metrics are registered before threads start; from then on the
 * registry is constant and only values change. Changing a value is one relaxed atomic addition: no
 * lock, no allocation. Reading never disturbs the writers, and sees each value by itself: two
 * values of one page may be from slightly different moments. */
#ifndef TR_CORE_METRICS_H
#define TR_CORE_METRICS_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct tr_metrics tr_metrics;
typedef struct tr_counter tr_counter;
typedef struct tr_gauge tr_gauge;
typedef struct tr_histogram tr_histogram;

#define TR_METRICS_BUCKETS_MAX 32

/* What a metric is called. Metrics may share a name, and then differ in label_value and agree in
 * the rest; the page shows them together. */
typedef struct {
    const char *name;        /* snake_case with unit: "troupe_messages_received_total"; static */
    const char *help;        /* one sentence on one line, under 256 bytes; static */
    const char *label_key;   /* snake_case; NULL: no label; static */
    const char *label_value; /* any UTF-8 text under 128 bytes, copied; NULL without label_key */
} tr_metric_name;

/* metrics_max: most metrics that will be registered. The caller owns *out. */
tr_status tr_metrics_open(tr_metrics **out, uint32_t metrics_max, tr_error *err);

/* The counters and the rest go with it. */
void tr_metrics_close(tr_metrics *metrics);

/* Registration: before threads start. What is returned is borrowed from the registry.
 * errors  TR_E_INVALID a malformed name, a name that is another sort of metric already, or name and
 *         label twice; TR_E_NOMEM metrics_max reached */

/* Only grows. */
tr_status tr_metrics_counter(tr_counter **out, tr_metrics *metrics, const tr_metric_name *name,
                             tr_error *err);

/* Goes up and down. */
tr_status tr_metrics_gauge(tr_gauge **out, tr_metrics *metrics, const tr_metric_name *name,
                           tr_error *err);

/* Values that somebody else keeps: read is called for each page, from the thread that asks for it.
 * ctx is borrowed as long as the registry lives. */
tr_status tr_metrics_counter_from(tr_metrics *metrics, const tr_metric_name *name,
                                  uint64_t (*read)(const void *ctx), const void *ctx,
                                  tr_error *err);
tr_status tr_metrics_gauge_from(tr_metrics *metrics, const tr_metric_name *name,
                                uint64_t (*read)(const void *ctx), const void *ctx, tr_error *err);

/* How often values fell below or on each of some bounds.
 *
 *   bounds  [bounds_count], ascending, 1..TR_METRICS_BUCKETS_MAX; copied; a last bucket without
 *           bound is added
 *   scale   what one unit of a value is on the page: 1e-9 for nanoseconds shown as seconds; > 0 */
tr_status tr_metrics_histogram(tr_histogram **out, tr_metrics *metrics, const tr_metric_name *name,
                               const uint64_t *bounds, uint32_t bounds_count, double scale,
                               tr_error *err);

/* Values. Thread: any. Never block. */
void tr_counter_add(tr_counter *counter, uint64_t amount);
void tr_gauge_set(tr_gauge *gauge, int64_t value);
void tr_gauge_add(tr_gauge *gauge, int64_t amount);
void tr_histogram_observe(tr_histogram *histogram, uint64_t value);

/* The values at this moment. */
uint64_t tr_counter_value(const tr_counter *counter);
int64_t tr_gauge_value(const tr_gauge *gauge);

/* Writes the page in the text exposition format, version 0.0.4 (HELP, TYPE, samples).
 *
 *   text   [size] is filled with as many whole lines as fit, and ends with a NUL if size > 0
 *
 * Returns the bytes of the whole page without the NUL; a result >= size means that the text was
 * cut. Thread: any. */
size_t tr_metrics_write(const tr_metrics *metrics, char *text, size_t size);

/* The same to a stream. TR_E_INVALID when the stream has an error. */
tr_status tr_metrics_print(const tr_metrics *metrics, FILE *out);

#endif
