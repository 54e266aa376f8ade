/* fuzz_chat_stream.c - the events that troupe chat reads from a server, whole and cut, must give
 * the same parts. */
#include "tools/chat_stream.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A running sum over everything that is emitted, in order. */
static void sum_emit(void *ctx, chat_part part, const char *text, size_t size)
{
    uint64_t *sum = ctx;
    assert(size > 0);
    *sum = *sum * 31 + (uint64_t)part;
    for (size_t i = 0; i < size; i++)
        *sum = *sum * 31 + (unsigned char)text[i];
}

static uint64_t read_events(const char *bytes, size_t size, size_t step)
{
    chat_stream stream;
    uint64_t sum = 0;
    tr_status status = TR_OK;
    chat_stream_init(&stream, sum_emit, &sum);
    for (size_t used = 0; used < size && status == TR_OK; used += step)
        status =
            chat_stream_push(&stream, bytes + used, size - used < step ? size - used : step, NULL);
    if (status == TR_OK)
        chat_stream_end(&stream);
    sum = sum * 31 + (uint64_t)stream.done + 2 * (uint64_t)stream.has_error;
    chat_stream_teardown(&stream);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t step = 1 + (size > 0 ? data[0] % 7 : 0);
    uint64_t whole = read_events((const char *)data, size, size + 1);
    uint64_t cut = read_events((const char *)data, size, step);
    assert(whole == cut);
    return 0;
}
