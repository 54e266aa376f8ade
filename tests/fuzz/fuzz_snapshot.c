/* fuzz_snapshot.c - files of sequence states, for a model of two parts. What is accepted has counts
 * that a batcher can take, and states that lie inside the file. The hash is made right first, else
 * nothing would come past it. */
#include "actors/snapshot.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

static const tr_snapshot_head expected = {.magic = {'T', 'R', 'S', 'T', 'A', 'T', 'E', 'S'},
                                          .version = TR_SNAPSHOT_VERSION,
                                          .model = 1,
                                          .fingerprint = 2,
                                          .layout = 3,
                                          .state_size = 24,
                                          .page_size = 40,
                                          .ngram_size = 8,
                                          .vocab_size = 100};

static void check_entry(const tr_snapshot *s, const tr_snapshot_entry *entry)
{
    const tr_snapshot_slot *slot = &entry->slot;
    int32_t token;

    if (slot->tokens_count == 0 || slot->prompt_count > slot->tokens_count ||
        slot->computed_count > slot->tokens_count || slot->stop_tokens_count > TR_STOP_TOKENS_MAX)
        abort();
    if (entry->state_at + tr_snapshot_state_size(&expected, slot->computed_count) > s->size)
        abort();
    for (uint32_t i = 0; i < slot->tokens_count; i++)
        if (tr_snapshot_read(s, entry->tokens_at + i * sizeof(token), &token, sizeof(token),
                             NULL) != TR_OK ||
            token < 0 || token >= 100)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tr_snapshot s;
    tr_error err;
    uint64_t hash = XXH3_64bits(data, size > sizeof(hash) ? size - sizeof(hash) : 0);
    int fd = memfd_create("snapshot", MFD_CLOEXEC);

    if (fd < 0)
        abort();
    if (size > 0 && write(fd, data, size) != (ssize_t)size)
        abort();
    if (size > sizeof(hash) &&
        pwrite(fd, &hash, sizeof(hash), (off_t)(size - sizeof(hash))) != sizeof(hash))
        abort();
    if (tr_snapshot_open_fd(&s, fd, "input", &expected, NULL, &err) != TR_OK)
        return 0;
    for (uint32_t i = 0; i < s.entries_count; i++)
        check_entry(&s, &s.entries[i]);
    tr_snapshot_close(&s);
    return 0;
}
