#include "actors/snapshot.h"

#include "kernels/kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define SNAPSHOT_TOKENS_MAX (1u << 24)          /* the longest context of any placement file */
#define SNAPSHOT_USES_MAX   (UINT64_C(1) << 62) /* then counting goes on and never wraps */
#define SNAPSHOT_PIECE      (1u << 16)          /* bytes that are read at once */

static const char snapshot_magic[8] = {'T', 'R', 'S', 'T', 'A', 'T', 'E', 'S'};

static void head_add_part(void *ctx, const tr_kv_part *part)
{
    tr_snapshot_head *head = ctx;
    uint64_t row[] = {part->layer, part->term, part->page_size, part->state_size};
    head->layout = XXH3_64bits_withSeed(row, sizeof(row), head->layout);
    head->state_size += part->state_size;
    head->page_size += part->page_size;
}

void tr_snapshot_head_make(tr_snapshot_head *out, const tr_model_spec *spec)
{
    *out = (tr_snapshot_head){.version = TR_SNAPSHOT_VERSION, .vocab_size = spec->vocab_size};
    memcpy(out->magic, snapshot_magic, sizeof(out->magic));
    tr_kv_each_part(spec, head_add_part, out);
}

uint64_t tr_snapshot_state_size(const tr_snapshot_head *head, uint32_t computed_count)
{
    uint64_t pages = ((uint64_t)computed_count + TR_KV_PAGE_TOKENS - 1) / TR_KV_PAGE_TOKENS;
    return head->state_size + pages * head->page_size + head->ngram_size;
}

/* -- writing -- */

struct tr_snapshot_writer {
    FILE *file; /* owns */
    char path[TR_PATH_SIZE], part_path[TR_PATH_SIZE + 8];
    tr_snapshot_head head;
    uint64_t size;      /* bytes so far */
    uint64_t state_end; /* where the state of the last slot ends */
    XXH3_state_t *hash; /* owns */
};

static tr_status writer_fail(const tr_snapshot_writer *w, tr_error *err)
{
    return tr_fail(err, TR_E_INVALID, "%.180s: %s", w->part_path, strerror(errno));
}

static tr_status writer_put(tr_snapshot_writer *w, const void *bytes, size_t size, tr_error *err)
{
    if (size > 0 && fwrite(bytes, 1, size, w->file) != size)
        return writer_fail(w, err);
    (void)XXH3_64bits_update(w->hash, bytes, size); /* fails for NULL states alone */
    w->size += size;
    return TR_OK;
}

static void writer_free(tr_snapshot_writer *w)
{
    if (w->file != NULL)
        (void)fclose(w->file); /* what matters has been flushed */
    (void)XXH3_freeState(w->hash);
    free(w);
}

tr_status tr_snapshot_begin(tr_snapshot_writer **out, const char *path,
                            const tr_snapshot_head *head, tr_error *err)
{
    if (strlen(path) >= TR_PATH_SIZE)
        return tr_fail(err, TR_E_INVALID, "%.100s...: the path has %zu bytes, expected at most %d",
                       path, strlen(path), TR_PATH_SIZE - 1);
    tr_snapshot_writer *w = calloc(1, sizeof(*w));
    if (w != NULL)
        w->hash = XXH3_createState();
    if (w == NULL || w->hash == NULL) {
        free(w);
        return tr_fail(err, TR_E_NOMEM, "no memory to write %.150s", path);
    }
    (void)XXH3_64bits_reset(w->hash);
    w->head = *head;
    snprintf(w->path, sizeof(w->path), "%s", path);
    snprintf(w->part_path, sizeof(w->part_path), "%s.part", path);
    /* What users asked is in it: nobody else may read it. */
    (void)unlink(w->part_path); /* what a node left that died while it wrote */
    int fd = open(w->part_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        w->file = fdopen(fd, "wb");
    if (w->file == NULL) {
        if (fd >= 0)
            (void)close(fd);
        tr_status status = writer_fail(w, err);
        writer_free(w);
        return status;
    }
    tr_status status = writer_put(w, head, sizeof(*head), err);
    w->state_end = w->size;
    if (status != TR_OK)
        tr_snapshot_abandon(w);
    else
        *out = w;
    return status;
}

tr_status tr_snapshot_add_slot(tr_snapshot_writer *w, const tr_snapshot_slot *slot,
                               const int32_t *tokens, tr_error *err)
{
    assert(w->size == w->state_end);
    tr_status status = writer_put(w, slot, sizeof(*slot), err);
    if (status == TR_OK)
        status = writer_put(w, tokens, slot->tokens_count * sizeof(*tokens), err);
    w->state_end = w->size;
    if (slot->kind != TR_SNAPSHOT_END)
        w->state_end += tr_snapshot_state_size(&w->head, slot->computed_count);
    return status;
}

tr_status tr_snapshot_add_state(tr_snapshot_writer *w, const void *bytes, size_t size,
                                tr_error *err)
{
    assert(size <= w->state_end - w->size);
    return writer_put(w, bytes, size, err);
}

/* The new name is on the disk, too. */
static void sync_folder(const char *path)
{
    char folder[TR_PATH_SIZE];
    const char *slash = strrchr(path, '/');
    int size = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof(folder), "%.*s", size, slash == NULL ? "." : path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return; /* the file is whole all the same */
    (void)fsync(fd);
    close(fd);
}

tr_status tr_snapshot_end(tr_snapshot_writer *w, uint64_t *size, tr_error *err)
{
    const tr_snapshot_slot end = {.kind = TR_SNAPSHOT_END};
    tr_status status = tr_snapshot_add_slot(w, &end, NULL, err);
    uint64_t check = XXH3_64bits_digest(w->hash);

    if (status == TR_OK)
        status = writer_put(w, &check, sizeof(check), err);
    if (status == TR_OK && (fflush(w->file) != 0 || fsync(fileno(w->file)) != 0))
        status = writer_fail(w, err);
    if (status == TR_OK && rename(w->part_path, w->path) != 0)
        status = writer_fail(w, err);
    if (status != TR_OK) {
        tr_snapshot_abandon(w);
        return status;
    }
    *size = w->size;
    sync_folder(w->path);
    writer_free(w);
    return TR_OK;
}

void tr_snapshot_abandon(tr_snapshot_writer *w)
{
    if (w == NULL)
        return;
    (void)unlink(w->part_path); /* nobody takes it for whole */
    writer_free(w);
}

/* -- reading -- */

tr_status tr_snapshot_read(const tr_snapshot *s, uint64_t at, void *out, size_t size, tr_error *err)
{
    uint8_t *to = out;
    if (s->given_up != NULL && atomic_load_explicit(s->given_up, memory_order_relaxed))
        return tr_fail(err, TR_E_CANCELED, "%.150s: given up: a node was lost, or the cluster ends",
                       s->path);
    while (size > 0) {
        ssize_t got = pread(s->fd, to, size, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tr_fail(err, TR_E_INVALID, "%.180s: %s", s->path, strerror(errno));
        if (got == 0)
            return tr_fail(err, TR_E_INVALID, "%.180s: it ends at byte %llu, expected more",
                           s->path, (unsigned long long)at);
        to += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return TR_OK;
}

static tr_status check_number(const tr_snapshot *s, const char *what, uint64_t found,
                              uint64_t expected, const char *hint, tr_error *err)
{
    if (found == expected)
        return TR_OK;
    return tr_fail(err, TR_E_INVALID, "%.100s: %s: found %llx, expected %llx: %s", s->path, what,
                   (unsigned long long)found, (unsigned long long)expected, hint);
}

static tr_status check_head(const tr_snapshot *s, const tr_snapshot_head *head,
                            const tr_snapshot_head *expected, tr_error *err)
{
    if (memcmp(head->magic, expected->magic, sizeof(head->magic)) != 0)
        return tr_fail(err, TR_E_INVALID, "%.180s: not a file of sequence states", s->path);
    tr_status status = check_number(s, "version", head->version, expected->version,
                                    "it was written by another version", err);
    if (status == TR_OK)
        status = check_number(s, "model", head->model, expected->model,
                              "it was written with another checkpoint", err);
    if (status == TR_OK)
        status = check_number(s, "fingerprint", head->fingerprint, expected->fingerprint,
                              "it was written by kernels that give other bits", err);
    if (status == TR_OK)
        status = check_number(s, "activations", head->activations, expected->activations,
                              "the placement file rounds them differently", err);
    if (status == TR_OK && memcmp(head, expected, sizeof(*head)) != 0)
        status = tr_fail(err, TR_E_INVALID, "%.180s: its states are laid out differently", s->path);
    return status;
}

/* What is wrong with a slot; NULL: nothing. */
static const char *slot_trouble(const tr_snapshot_slot *slot)
{
    if (slot->kind != TR_SNAPSHOT_PREFIX && slot->kind != TR_SNAPSHOT_SEQUENCE)
        return "the kind is not known";
    if (slot->tokens_count > SNAPSHOT_TOKENS_MAX || slot->tokens_max > SNAPSHOT_TOKENS_MAX)
        return "too many tokens";
    if (slot->prompt_count == 0 || slot->prompt_count > slot->tokens_count)
        return "the prompt is empty or longer than the tokens";
    if (slot->stop_tokens_count > TR_STOP_TOKENS_MAX)
        return "too many stop tokens";
    if (slot->used > SNAPSHOT_USES_MAX)
        return "used more often than anything can be";
    if (slot->computed_count == 0 ||
        (slot->computed_count < slot->prompt_count && slot->computed_count % TR_CHUNK_ROWS != 0))
        return "the computed positions end where none do";
    if (slot->kind == TR_SNAPSHOT_PREFIX &&
        (slot->tokens_count != slot->prompt_count || slot->computed_count != slot->prompt_count ||
         slot->prompt_count % TR_CHUNK_ROWS != 0))
        return "a prefix that does not end with a chunk";
    if (slot->kind == TR_SNAPSHOT_SEQUENCE &&
        (slot->computed_count >= slot->tokens_count ||
         slot->tokens_count - slot->prompt_count >= slot->tokens_max))
        return "a sequence that has ended already";
    return NULL;
}

tr_status tr_snapshot_read_tokens(const tr_snapshot *s, const tr_snapshot_entry *entry,
                                  uint32_t vocab_size, uint32_t first, uint32_t count, int32_t *out,
                                  tr_error *err)
{
    tr_status status = tr_snapshot_read(s, entry->tokens_at + first * sizeof(*out), out,
                                        count * sizeof(*out), err);
    for (uint32_t i = 0; status == TR_OK && i < count; i++)
        if (out[i] < 0 || (uint32_t)out[i] >= vocab_size)
            status = tr_fail(err, TR_E_INVALID, "%.100s: slot %u: token %d, expected 0 to %u",
                             s->path, entry->number, out[i], vocab_size - 1);
    return status;
}

static tr_status check_tokens(const tr_snapshot *s, const tr_snapshot_entry *entry,
                              uint32_t vocab_size, tr_error *err)
{
    int32_t tokens[SNAPSHOT_PIECE / sizeof(int32_t)];
    uint32_t piece = sizeof(tokens) / sizeof(tokens[0]), count = entry->slot.tokens_count;
    tr_status status = TR_OK;

    for (uint32_t done = 0, n; status == TR_OK && done < count; done += n) {
        n = count - done < piece ? count - done : piece;
        status = tr_snapshot_read_tokens(s, entry, vocab_size, done, n, tokens, err);
    }
    return status;
}

/* Reads one slot at *at and moves on. *ended: it was the end. */
static tr_status read_slot(tr_snapshot *s, const tr_snapshot_head *head, uint64_t *at, bool *ended,
                           tr_error *err)
{
    tr_snapshot_entry entry = {.number = s->entries_count};
    tr_status status = tr_snapshot_read(s, *at, &entry.slot, sizeof(entry.slot), err);
    if (status != TR_OK)
        return status;
    entry.tokens_at = *at + sizeof(entry.slot);
    *ended = entry.slot.kind == TR_SNAPSHOT_END;
    if (*ended) {
        *at = entry.tokens_at;
        return TR_OK;
    }
    const char *wrong = slot_trouble(&entry.slot);
    if (wrong == NULL && s->entries_count == TR_SEQUENCES_MAX)
        wrong = "there are more slots than any cluster has";
    if (wrong != NULL)
        return tr_fail(err, TR_E_INVALID, "%.100s: slot %u: %s", s->path, s->entries_count, wrong);
    entry.state_at = entry.tokens_at + entry.slot.tokens_count * sizeof(int32_t);
    uint64_t end = entry.state_at + tr_snapshot_state_size(head, entry.slot.computed_count);
    if (end > s->size)
        return tr_fail(err, TR_E_INVALID, "%.100s: %llu bytes, slot %u ends at %llu", s->path,
                       (unsigned long long)s->size, s->entries_count, (unsigned long long)end);
    status = check_tokens(s, &entry, head->vocab_size, err);
    if (status != TR_OK)
        return status;
    s->entries[s->entries_count++] = entry;
    *at = end;
    return TR_OK;
}

static tr_status check_hash(const tr_snapshot *s, uint64_t size, tr_error *err)
{
    uint8_t piece[SNAPSHOT_PIECE];
    uint64_t check = 0;
    tr_status status = TR_OK;
    XXH3_state_t *hash = XXH3_createState();

    if (hash == NULL)
        return tr_fail(err, TR_E_NOMEM, "no memory to check %.150s", s->path);
    (void)XXH3_64bits_reset(hash);
    for (uint64_t at = 0, n; at < size && status == TR_OK; at += n) {
        n = size - at < sizeof(piece) ? size - at : sizeof(piece);
        status = tr_snapshot_read(s, at, piece, n, err);
        if (status == TR_OK)
            (void)XXH3_64bits_update(hash, piece, n);
    }
    uint64_t found = XXH3_64bits_digest(hash);
    (void)XXH3_freeState(hash);
    if (status == TR_OK)
        status = tr_snapshot_read(s, size, &check, sizeof(check), err);
    if (status == TR_OK)
        status = check_number(s, "hash", found, check, "the file is damaged", err);
    return status;
}

static tr_status read_all(tr_snapshot *s, const tr_snapshot_head *expected, tr_error *err)
{
    tr_snapshot_head head;
    uint64_t at = sizeof(head);
    bool ended = false;
    struct stat st;

    if (fstat(s->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return tr_fail(err, TR_E_INVALID, "%.180s: not a regular file", s->path);
    s->size = (uint64_t)st.st_size;
    tr_status status = tr_snapshot_read(s, 0, &head, sizeof(head), err);
    if (status == TR_OK)
        status = check_head(s, &head, expected, err);
    while (status == TR_OK && !ended)
        status = read_slot(s, &head, &at, &ended, err);
    if (status == TR_OK && s->size != at + sizeof(uint64_t))
        status = tr_fail(err, TR_E_INVALID, "%.100s: %llu bytes, expected %llu", s->path,
                         (unsigned long long)s->size, (unsigned long long)(at + sizeof(uint64_t)));
    if (status == TR_OK)
        status = check_hash(s, at, err);
    return status;
}

tr_status tr_snapshot_open_fd(tr_snapshot *out, int fd, const char *path,
                              const tr_snapshot_head *expected, const _Atomic bool *given_up,
                              tr_error *err)
{
    out->fd = fd;
    out->size = 0;
    out->given_up = given_up;
    out->entries_count = 0;
    snprintf(out->path, sizeof(out->path), "%s", path);
    tr_status status = read_all(out, expected, err);
    if (status != TR_OK)
        tr_snapshot_close(out);
    return status;
}

tr_status tr_snapshot_open(tr_snapshot *out, const char *path, const tr_snapshot_head *expected,
                           const _Atomic bool *given_up, tr_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe does not hold us up */
    if (fd < 0)
        return tr_fail(err, TR_E_INVALID, "%.180s: %s", path, strerror(errno));
    return tr_snapshot_open_fd(out, fd, path, expected, given_up, err);
}

void tr_snapshot_close(tr_snapshot *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}
