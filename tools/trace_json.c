#include "tools/trace_json.h"

#include "core/message.h"

#include <inttypes.h>
#include <string.h>

/* Names come from other processes: what is not plain ASCII becomes '?'. */
static void print_text(const char *text, FILE *out)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fputc('\\', out);
        fputc(c >= 0x20 && c < 0x7f ? c : '?', out);
    }
    fputc('"', out);
}

/* Nanoseconds as microseconds, exactly. */
static void print_us(const char *key, int64_t ns, FILE *out)
{
    fprintf(out, "\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

static const char *find_name(const tr_trace_name *names, uint32_t count, uint64_t id)
{
    for (uint32_t i = 0; i < count; i++)
        if (names[i].id == id)
            return names[i].name;
    return NULL;
}

/* Process and thread numbers start at 1: some viewers treat 0 as the idle process. */
static void print_place(const tr_trace_join *join, uint32_t track, FILE *out)
{
    fprintf(out, "\"pid\":%u,\"tid\":%u", join->tracks[track].node + 1, track + 1);
}

/* -- names -- */

static void track_name(char *text, size_t size, const tr_track *track, const tr_trace_node *node)
{
    const char *name;

    switch (track->kind) {
    case TR_TRACK_REQUESTS:
        snprintf(text, size, "requests");
        break;
    case TR_TRACK_STEPS:
        snprintf(text, size, "steps");
        break;
    case TR_TRACK_ACTOR:
        name = find_name(node->actors, node->actors_count, track->key);
        if (name != NULL)
            snprintf(text, size, "%s", name);
        else
            snprintf(text, size, "actor 0x%" PRIx64, track->key);
        break;
    case TR_TRACK_THREAD:
        snprintf(text, size, "thread %s", node->rings[track->key].thread);
        break;
    }
    size_t used = strlen(text);
    if (track->lane > 0)
        snprintf(text + used, size - used, " (%u)", track->lane + 1);
}

static void print_names(const tr_trace_join *join, const tr_trace_node *nodes, uint32_t nodes_count,
                        FILE *out)
{
    char text[TR_TRACE_NAME_SIZE + 32];

    for (uint32_t n = 0; n < nodes_count; n++) {
        fprintf(out,
                "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"tid\":0,\"args\":{"
                "\"name\":",
                n > 0 ? "," : "", n + 1);
        print_text(nodes[n].name, out);
        fprintf(out, "}}");
    }
    for (uint32_t t = 0; t < join->tracks_count; t++) {
        const tr_track *track = &join->tracks[t];
        track_name(text, sizeof(text), track, &nodes[track->node]);
        fprintf(out, ",\n{\"ph\":\"M\",\"name\":\"thread_name\",");
        print_place(join, t, out);
        fprintf(out, ",\"args\":{\"name\":");
        print_text(text, out);
        fprintf(out, "}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",");
        print_place(join, t, out);
        fprintf(out, ",\"args\":{\"sort_index\":%u}}", t);
    }
}

/* -- slices and arrows -- */

static void slice_name(char *text, size_t size, const tr_trace_event *event,
                       const tr_trace_node *node)
{
    const char *name;

    switch ((tr_trace_kind)event->kind) {
    case TR_TRACE_RECEIVE:
        snprintf(text, size, "%s", tr_msg_kind_name(event->detail));
        return;
    case TR_TRACE_SEND:
        snprintf(text, size, "send %s", tr_msg_kind_name(event->detail));
        return;
    case TR_TRACE_KERNEL:
        name = find_name(node->kernels, node->kernels_count, event->detail);
        if (name != NULL)
            snprintf(text, size, "%s", name);
        else
            snprintf(text, size, "kernel %u", event->detail);
        return;
    case TR_TRACE_STEP:
        snprintf(text, size, "step %" PRIu64, event->id);
        return;
    case TR_TRACE_REQUEST:
        snprintf(text, size, "request %" PRIu64, event->id);
        return;
    case TR_TRACE_WAIT:
        snprintf(text, size, "sleep");
        return;
    }
    snprintf(text, size, "unknown");
}

static const char *slice_category(const tr_trace_event *event)
{
    switch ((tr_trace_kind)event->kind) {
#define X(name, value, text)                                                                       \
    case TR_TRACE_##name:                                                                          \
        return text;
        TR_TRACE_MAP(X)
#undef X
    }
    return "unknown";
}

static void print_slice(const tr_trace_join *join, const tr_trace_slice *slice,
                        const tr_trace_node *node, FILE *out)
{
    char name[TR_TRACE_NAME_SIZE];

    slice_name(name, sizeof(name), slice->event, node);
    fprintf(out, ",\n{\"ph\":\"X\",\"name\":");
    print_text(name, out);
    fprintf(out, ",\"cat\":\"%s\",", slice_category(slice->event));
    print_place(join, slice->track, out);
    fputc(',', out);
    print_us("ts", slice->begin_ns, out);
    fputc(',', out);
    print_us("dur", slice->duration_ns, out);
    if (slice->event->id != 0) /* as text: it may exceed what a double holds */
        fprintf(out, ",\"args\":{\"id\":\"0x%" PRIx64 "\"}", slice->event->id);
    fputc('}', out);
}

/* bp "e": the arrow ends at the slice around it, not at the next one. */
static void print_arrow_end(const tr_trace_join *join, const tr_trace_slice *slice, FILE *out)
{
    bool starts = slice->event->kind == TR_TRACE_SEND;

    fprintf(out, ",\n{\"ph\":\"%s\",\"name\":\"%s\",\"cat\":\"message\",\"id\":\"0x%" PRIx64 "\",",
            starts ? "s" : "f\",\"bp\":\"e", tr_msg_kind_name(slice->event->detail),
            slice->event->id);
    print_place(join, slice->track, out);
    fputc(',', out);
    print_us("ts", slice->begin_ns, out);
    fputc('}', out);
}

void tr_trace_json_write(const tr_trace_join *join, const tr_trace_node *nodes,
                         uint32_t nodes_count, FILE *out)
{
    fprintf(out, "{\"displayTimeUnit\":\"ns\",\n\"otherData\":{");
    for (uint32_t n = 0; n < nodes_count; n++) {
        char key[TR_NAME_SIZE + 32];
        snprintf(key, sizeof(key), "clock_offset_ns %s", nodes[n].name);
        fprintf(out, "%s", n > 0 ? "," : "");
        print_text(key, out);
        fprintf(out, ":\"%" PRId64 "\"", join->clock_offset_ns[n]);
    }
    fprintf(out, "},\n\"traceEvents\":[");
    print_names(join, nodes, nodes_count, out);
    for (size_t i = 0; i < join->slices_count; i++) {
        const tr_trace_slice *slice = &join->slices[i];
        if (slice->slice)
            print_slice(join, slice, &nodes[slice->node], out);
        if (slice->has_arrow)
            print_arrow_end(join, slice, out);
    }
    fprintf(out, "\n]}\n");
}
