#include "api/stop_strings.h"

#include "api/text.h"

#include <string.h>

/* New bytes that are looked at together with the held ones. Any value does. */
#define PIECE_SIZE 256

void tr_stop_filter_init(tr_stop_filter *f, const tr_stop_strings *stops)
{
    *f = (tr_stop_filter){.stops = stops};
}

/* Start of the longest stop string that ends at text + end, or end when there is none. */
static size_t stop_start(const tr_stop_strings *stops, const char *text, size_t end)
{
    size_t start = end;
    for (uint32_t i = 0; i < stops->count; i++) {
        size_t size = stops->strings[i].size;
        if (size <= end && end - size < start &&
            memcmp(text + end - size, stops->strings[i].text, size) == 0)
            start = end - size;
    }
    return start;
}

/* Bytes at the end of text that are the beginning of a stop string, as many as possible. */
static size_t stop_prefix_size(const tr_stop_strings *stops, const char *text, size_t size)
{
    size_t longest = 0;
    for (uint32_t i = 0; i < stops->count; i++) {
        size_t prefix = stops->strings[i].size - 1;
        if (prefix > size)
            prefix = size;
        while (prefix > longest &&
               memcmp(text + size - prefix, stops->strings[i].text, prefix) != 0)
            prefix--;
        if (prefix > longest)
            longest = prefix;
    }
    return longest;
}

static void stop_filter_piece(tr_stop_filter *f, const char *text, size_t size,
                              void (*emit)(void *ctx, const char *text, size_t size), void *ctx)
{
    char joined[TR_STOP_STRING_SIZE_MAX + PIECE_SIZE];
    memcpy(joined, f->held, f->held_size);
    memcpy(joined + f->held_size, text, size);
    size_t joined_size = f->held_size + size;

    size_t passed = 0;
    for (size_t end = f->held_size + 1; end <= joined_size && !f->matched; end++) {
        passed = stop_start(f->stops, joined, end);
        f->matched = passed < end;
    }
    if (f->matched) {
        f->held_size = 0;
    } else {
        f->held_size = stop_prefix_size(f->stops, joined, joined_size);
        passed = joined_size - f->held_size;
        memcpy(f->held, joined + passed, f->held_size);
    }
    if (passed > 0)
        emit(ctx, joined, passed);
}

bool tr_stop_filter_push(tr_stop_filter *f, const char *text, size_t size,
                         void (*emit)(void *ctx, const char *text, size_t size), void *ctx)
{
    if (f->stops->count == 0) {
        if (size > 0)
            emit(ctx, text, size);
        return false;
    }
    while (size > 0 && !f->matched) {
        size_t piece = tr_text_cut(text, size, PIECE_SIZE);
        stop_filter_piece(f, text, piece, emit, ctx);
        text += piece;
        size -= piece;
    }
    return f->matched;
}

void tr_stop_filter_end(tr_stop_filter *f, void (*emit)(void *ctx, const char *text, size_t size),
                        void *ctx)
{
    if (f->held_size > 0 && !f->matched)
        emit(ctx, f->held, f->held_size);
    f->held_size = 0;
}
