#include "core/metrics.h"

#include <assert.h>
#include <math.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_CACHE_LINE 64
#define METRICS_MAX        65536u
#define METRICS_NAME_SIZE  96  /* of a name and of a label's key, with NUL */
#define METRICS_HELP_SIZE  256 /* with NUL */
#define METRICS_LABEL_SIZE 128 /* of a label's value, with NUL */

/* {key="value","le="..."}: every byte of the value may need a backslash. */
#define METRICS_LABELS_SIZE (METRICS_NAME_SIZE + 2 * METRICS_LABEL_SIZE + 64)

/* The longest line is a HELP or a bucket with its labels. */
#define METRICS_LINE_SIZE (METRICS_NAME_SIZE + METRICS_HELP_SIZE + METRICS_LABELS_SIZE + 64)

typedef enum { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM } metric_sort;

/* Different threads change different metrics: each value has a line of its own. */
struct tr_counter {
    alignas(METRICS_CACHE_LINE) _Atomic uint64_t value;
};

struct tr_gauge {
    alignas(METRICS_CACHE_LINE) _Atomic int64_t value;
};

/* Invariant: the observations are the sum of the buckets. */
struct tr_histogram {
    uint64_t bounds[TR_METRICS_BUCKETS_MAX];
    uint32_t bounds_count;
    double scale;
    alignas(METRICS_CACHE_LINE) _Atomic uint64_t sum;     /* of the values, in units */
    _Atomic uint64_t buckets[TR_METRICS_BUCKETS_MAX + 1]; /* not cumulative; the last one has no
                                                             bound */
};

typedef struct {
    metric_sort sort;
    const char *name;
    const char *help;
    const char *label_key;
    char label_value[METRICS_LABEL_SIZE];
    uint64_t (*read)(const void *ctx); /* NULL: the value is below */
    const void *ctx;
    union {
        tr_counter *counter; /* owns, each of these */
        tr_gauge *gauge;
        tr_histogram *histogram;
    } value;
} metric;

struct tr_metrics {
    uint32_t count;
    uint32_t metrics_max;
    metric list[]; /* [metrics_max]; metrics of one name stand together */
};

tr_status tr_metrics_open(tr_metrics **out, uint32_t metrics_max, tr_error *err)
{
    if (metrics_max < 1 || metrics_max > METRICS_MAX)
        return tr_fail(err, TR_E_INVALID, "metrics: room for %u, expected 1 to %u", metrics_max,
                       METRICS_MAX);
    tr_metrics *metrics = calloc(1, sizeof(*metrics) + metrics_max * sizeof(metrics->list[0]));
    if (metrics == NULL)
        return tr_fail(err, TR_E_NOMEM, "metrics: no memory for %u", metrics_max);
    metrics->metrics_max = metrics_max;
    *out = metrics;
    return TR_OK;
}

void tr_metrics_close(tr_metrics *metrics)
{
    if (metrics == NULL)
        return;
    for (uint32_t i = 0; i < metrics->count; i++) {
        metric *m = &metrics->list[i];
        switch (m->sort) {
        case METRIC_COUNTER:
            free(m->value.counter);
            break;
        case METRIC_GAUGE:
            free(m->value.gauge);
            break;
        case METRIC_HISTOGRAM:
            free(m->value.histogram);
            break;
        }
    }
    free(metrics);
}

/* -- registration -- */

static bool metrics_name_is_well_formed(const char *name)
{
    if (!(name[0] >= 'a' && name[0] <= 'z') || strlen(name) >= METRICS_NAME_SIZE)
        return false;
    for (const char *c = name; *c != '\0'; c++) {
        if (!(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9') && *c != '_')
            return false;
    }
    return true;
}

/* Where a metric of this name goes: behind the last one of its name, or at the end. */
static tr_status metrics_place(uint32_t *out, const tr_metrics *metrics, metric_sort sort,
                               const tr_metric_name *name, tr_error *err)
{
    const char *label_value = name->label_key != NULL ? name->label_value : "";
    uint32_t place = metrics->count;
    for (uint32_t i = 0; i < metrics->count; i++) {
        const metric *m = &metrics->list[i];
        if (strcmp(m->name, name->name) != 0)
            continue;
        if (m->sort != sort)
            return tr_fail(err, TR_E_INVALID, "metrics: \"%s\" is registered as another sort",
                           name->name);
        if (strcmp(m->label_value, label_value) == 0)
            return tr_fail(err, TR_E_INVALID, "metrics: \"%s\" with label \"%s\" is there already",
                           name->name, label_value);
        place = i + 1;
    }
    *out = place;
    return TR_OK;
}

/* Adds a metric without a value. *out is valid until the next one is added. */
static tr_status metrics_add(metric **out, tr_metrics *metrics, metric_sort sort,
                             const tr_metric_name *name, tr_error *err)
{
    if (!metrics_name_is_well_formed(name->name))
        return tr_fail(err, TR_E_INVALID,
                       "metrics: name \"%.100s\", expected a-z, 0-9 and _, at most %d", name->name,
                       METRICS_NAME_SIZE - 1);
    if (name->label_key != NULL && !metrics_name_is_well_formed(name->label_key))
        return tr_fail(err, TR_E_INVALID, "metrics: \"%s\": label \"%s\", expected a-z, 0-9 and _",
                       name->name, name->label_key);
    if (name->label_key != NULL && strlen(name->label_value) >= METRICS_LABEL_SIZE)
        return tr_fail(err, TR_E_INVALID, "metrics: \"%s\": label value of %zu bytes, at most %d",
                       name->name, strlen(name->label_value), METRICS_LABEL_SIZE - 1);
    assert(strlen(name->help) < METRICS_HELP_SIZE);
    assert(strchr(name->help, '\n') == NULL);
    uint32_t place = 0;
    tr_status status = metrics_place(&place, metrics, sort, name, err);
    if (status != TR_OK)
        return status;
    if (metrics->count == metrics->metrics_max)
        return tr_fail(err, TR_E_NOMEM, "metrics: %u are registered, \"%s\" is one too many",
                       metrics->count, name->name);

    metric *m = &metrics->list[place];
    memmove(m + 1, m, (metrics->count - place) * sizeof(*m));
    metrics->count++;
    *m = (metric){
        .sort = sort, .name = name->name, .help = name->help, .label_key = name->label_key};
    if (name->label_key != NULL)
        strcpy(m->label_value, name->label_value); /* its length was checked above */
    *out = m;
    return TR_OK;
}

/* Zeroed, on lines of its own. */
static void *metrics_take(size_t size)
{
    size = (size + METRICS_CACHE_LINE - 1) & ~(size_t)(METRICS_CACHE_LINE - 1);
    void *memory = aligned_alloc(METRICS_CACHE_LINE, size);
    if (memory != NULL)
        memset(memory, 0, size);
    return memory;
}

tr_status tr_metrics_counter(tr_counter **out, tr_metrics *metrics, const tr_metric_name *name,
                             tr_error *err)
{
    tr_counter *counter = metrics_take(sizeof(*counter));
    if (counter == NULL)
        return tr_fail(err, TR_E_NOMEM, "metrics: no memory for \"%s\"", name->name);
    metric *m = NULL;
    tr_status status = metrics_add(&m, metrics, METRIC_COUNTER, name, err);
    if (status != TR_OK) {
        free(counter);
        return status;
    }
    m->value.counter = counter;
    *out = counter;
    return TR_OK;
}

tr_status tr_metrics_gauge(tr_gauge **out, tr_metrics *metrics, const tr_metric_name *name,
                           tr_error *err)
{
    tr_gauge *gauge = metrics_take(sizeof(*gauge));
    if (gauge == NULL)
        return tr_fail(err, TR_E_NOMEM, "metrics: no memory for \"%s\"", name->name);
    metric *m = NULL;
    tr_status status = metrics_add(&m, metrics, METRIC_GAUGE, name, err);
    if (status != TR_OK) {
        free(gauge);
        return status;
    }
    m->value.gauge = gauge;
    *out = gauge;
    return TR_OK;
}

static tr_status metrics_add_from(tr_metrics *metrics, metric_sort sort, const tr_metric_name *name,
                                  uint64_t (*read)(const void *ctx), const void *ctx, tr_error *err)
{
    assert(read != NULL);
    metric *m = NULL;
    tr_status status = metrics_add(&m, metrics, sort, name, err);
    if (status != TR_OK)
        return status;
    m->read = read;
    m->ctx = ctx;
    return TR_OK;
}

tr_status tr_metrics_counter_from(tr_metrics *metrics, const tr_metric_name *name,
                                  uint64_t (*read)(const void *ctx), const void *ctx, tr_error *err)
{
    return metrics_add_from(metrics, METRIC_COUNTER, name, read, ctx, err);
}

tr_status tr_metrics_gauge_from(tr_metrics *metrics, const tr_metric_name *name,
                                uint64_t (*read)(const void *ctx), const void *ctx, tr_error *err)
{
    return metrics_add_from(metrics, METRIC_GAUGE, name, read, ctx, err);
}

tr_status tr_metrics_histogram(tr_histogram **out, tr_metrics *metrics, const tr_metric_name *name,
                               const uint64_t *bounds, uint32_t bounds_count, double scale,
                               tr_error *err)
{
    if (bounds_count < 1 || bounds_count > TR_METRICS_BUCKETS_MAX)
        return tr_fail(err, TR_E_INVALID, "metrics: \"%s\": %u bounds, expected 1 to %d",
                       name->name, bounds_count, TR_METRICS_BUCKETS_MAX);
    for (uint32_t i = 1; i < bounds_count; i++) {
        if (bounds[i] <= bounds[i - 1])
            return tr_fail(err, TR_E_INVALID, "metrics: \"%s\": bound %u does not ascend",
                           name->name, i);
    }
    if (!(scale > 0) || !isfinite(scale))
        return tr_fail(err, TR_E_INVALID, "metrics: \"%s\": scale %g, expected more than 0",
                       name->name, scale);
    tr_histogram *histogram = metrics_take(sizeof(*histogram));
    if (histogram == NULL)
        return tr_fail(err, TR_E_NOMEM, "metrics: no memory for \"%s\"", name->name);
    metric *m = NULL;
    tr_status status = metrics_add(&m, metrics, METRIC_HISTOGRAM, name, err);
    if (status != TR_OK) {
        free(histogram);
        return status;
    }
    memcpy(histogram->bounds, bounds, bounds_count * sizeof(*bounds));
    histogram->bounds_count = bounds_count;
    histogram->scale = scale;
    m->value.histogram = histogram;
    *out = histogram;
    return TR_OK;
}

/* -- values: relaxed throughout, they publish nothing but themselves -- */

void tr_counter_add(tr_counter *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(&counter->value, amount, memory_order_relaxed);
}

void tr_gauge_set(tr_gauge *gauge, int64_t value)
{
    atomic_store_explicit(&gauge->value, value, memory_order_relaxed);
}

void tr_gauge_add(tr_gauge *gauge, int64_t amount)
{
    atomic_fetch_add_explicit(&gauge->value, amount, memory_order_relaxed);
}

void tr_histogram_observe(tr_histogram *histogram, uint64_t value)
{
    uint32_t bucket = 0;
    while (bucket < histogram->bounds_count && value > histogram->bounds[bucket])
        bucket++;
    atomic_fetch_add_explicit(&histogram->buckets[bucket], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum, value, memory_order_relaxed);
}

uint64_t tr_counter_value(const tr_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_relaxed);
}

int64_t tr_gauge_value(const tr_gauge *gauge)
{
    return atomic_load_explicit(&gauge->value, memory_order_relaxed);
}

/* -- the page -- */

/* Where lines go: to a stream, or to text as long as whole lines fit. */
typedef struct {
    FILE *out;
    char *text;
    size_t size;
    size_t used;   /* bytes in text */
    size_t wanted; /* bytes of the page so far */
} metrics_page;

__attribute__((format(printf, 2, 3))) static void metrics_line(metrics_page *page, const char *fmt,
                                                               ...)
{
    char line[METRICS_LINE_SIZE];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(line, sizeof(line), fmt, args);
    va_end(args);
    assert(length >= 0 && (size_t)length < sizeof(line));

    bool cut = page->used != page->wanted; /* an earlier line did not fit: no later one either */
    page->wanted += (size_t)length;
    if (page->out != NULL) {
        fwrite(line, 1, (size_t)length,
               page->out); /* tr_metrics_print looks at the stream's error */
        page->used = page->wanted;
    } else if (!cut && page->used + (size_t)length < page->size) {
        memcpy(page->text + page->used, line, (size_t)length + 1);
        page->used += (size_t)length;
    }
}

/* The label as {key="value"}, with room for one more label behind it; "" when there is none. */
static const char *metrics_label(char *text, size_t size, const metric *m, const char *more)
{
    size_t used = 0;
    text[0] = '\0';
    if (m->label_key == NULL && more[0] == '\0')
        return text;
    used += (size_t)snprintf(text, size, "{");
    if (m->label_key != NULL) {
        used += (size_t)snprintf(text + used, size - used, "%s=\"", m->label_key);
        for (const char *c = m->label_value; *c != '\0'; c++) {
            const char *escaped = *c == '\\'   ? "\\\\"
                                  : *c == '"'  ? "\\\""
                                  : *c == '\n' ? "\\n"
                                               : NULL;
            if (escaped != NULL)
                used += (size_t)snprintf(text + used, size - used, "%s", escaped);
            else
                used += (size_t)snprintf(text + used, size - used, "%c", *c);
        }
        used += (size_t)snprintf(text + used, size - used, "\"%s", more[0] != '\0' ? "," : "");
    }
    snprintf(text + used, size - used, "%s}", more);
    return text;
}

static void metrics_write_histogram(metrics_page *page, const metric *m)
{
    const tr_histogram *h = m->value.histogram;
    char label[METRICS_LABELS_SIZE];
    char more[48];
    /* Each bucket is read once, so that count is the last bucket whatever happens meanwhile. */
    uint64_t cumulative = 0;
    for (uint32_t i = 0; i <= h->bounds_count; i++) {
        cumulative += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        if (i < h->bounds_count)
            snprintf(more, sizeof(more), "le=\"%.9g\"", (double)h->bounds[i] * h->scale);
        else
            snprintf(more, sizeof(more), "le=\"+Inf\"");
        metrics_line(page, "%s_bucket%s %llu\n", m->name,
                     metrics_label(label, sizeof(label), m, more), (unsigned long long)cumulative);
    }
    metrics_label(label, sizeof(label), m, "");
    metrics_line(page, "%s_sum%s %.9g\n", m->name, label,
                 (double)atomic_load_explicit(&h->sum, memory_order_relaxed) * h->scale);
    metrics_line(page, "%s_count%s %llu\n", m->name, label, (unsigned long long)cumulative);
}

static void metrics_write_one(metrics_page *page, const metric *m)
{
    char label[METRICS_LABELS_SIZE];
    if (m->sort == METRIC_HISTOGRAM) {
        metrics_write_histogram(page, m);
        return;
    }
    metrics_label(label, sizeof(label), m, "");
    if (m->read != NULL)
        metrics_line(page, "%s%s %llu\n", m->name, label, (unsigned long long)m->read(m->ctx));
    else if (m->sort == METRIC_COUNTER)
        metrics_line(page, "%s%s %llu\n", m->name, label,
                     (unsigned long long)tr_counter_value(m->value.counter));
    else
        metrics_line(page, "%s%s %lld\n", m->name, label,
                     (long long)tr_gauge_value(m->value.gauge));
}

static void metrics_write_page(metrics_page *page, const tr_metrics *metrics)
{
    static const char *const sorts[] = {
        [METRIC_COUNTER] = "counter", [METRIC_GAUGE] = "gauge", [METRIC_HISTOGRAM] = "histogram"};
    for (uint32_t i = 0; i < metrics->count; i++) {
        const metric *m = &metrics->list[i];
        if (i == 0 || strcmp(m->name, metrics->list[i - 1].name) != 0) {
            metrics_line(page, "# HELP %s %s\n", m->name, m->help);
            metrics_line(page, "# TYPE %s %s\n", m->name, sorts[m->sort]);
        }
        metrics_write_one(page, m);
    }
}

size_t tr_metrics_write(const tr_metrics *metrics, char *text, size_t size)
{
    metrics_page page = {.text = text, .size = size};
    if (size > 0)
        text[0] = '\0';
    metrics_write_page(&page, metrics);
    return page.wanted;
}

tr_status tr_metrics_print(const tr_metrics *metrics, FILE *out)
{
    metrics_page page = {.out = out};
    metrics_write_page(&page, metrics);
    return ferror(out) ? TR_E_INVALID : TR_OK;
}
