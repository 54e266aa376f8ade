/* snapshot.h - the file in which states of sequences outlive all processes.
 *
 *   head     tr_snapshot_head: what the states were made with
 *   slots    tr_snapshot_slot, then i32 tokens [tokens_count], then the state: part after part as
 *            tr_kv_each_part orders them, of each its piece of the state slot and then its pieces
 * of the pages up to computed_count; then where the sequence stands in the n-gram tables end      a
 * tr_snapshot_slot of kind 0 check    u64: XXH3 of all bytes before
 *
 * Nothing in it depends on the placement. All numbers are little-endian. A reader believes nothing:
 * it checks every count against what is left of the file, then the whole against its hash. */
#ifndef TR_ACTORS_SNAPSHOT_H
#define TR_ACTORS_SNAPSHOT_H

#include "actors/kv_layout.h"
#include "actors/messages.h"

#define TR_SNAPSHOT_VERSION 1

typedef struct {
    char magic[8];        /* "TRSTATES" */
    uint32_t version;     /* TR_SNAPSHOT_VERSION */
    uint32_t activations; /* 1: rounded to NVFP4 */
    uint64_t model;       /* tr_model_identity */
    uint64_t fingerprint; /* of the kernels: states are their bits */
    uint64_t layout;      /* hash of the parts and their sizes */
    uint64_t state_size;  /* bytes of a state slot, all parts */
    uint64_t page_size;   /* bytes of a page, all parts */
    uint32_t ngram_size;  /* bytes about n-gram tables */
    uint32_t vocab_size;
} tr_snapshot_head;

typedef enum {
    TR_SNAPSHOT_END = 0,
    TR_SNAPSHOT_PREFIX = 1,  /* of a prompt, for requests that begin with it */
    TR_SNAPSHOT_SEQUENCE = 2 /* of a request that had not ended */
} tr_snapshot_kind;

typedef struct {
    uint32_t kind; /* tr_snapshot_kind */
    uint32_t tokens_count;
    uint32_t prompt_count;   /* of the tokens */
    uint32_t computed_count; /* positions whose state is here */
    uint32_t tokens_max;     /* SEQUENCE: that it was to generate */
    uint32_t stop_tokens_count;
    int32_t stop_tokens[TR_STOP_TOKENS_MAX];
    tr_sampling sampling;
    uint64_t used; /* the larger, the later it was used */
} tr_snapshot_slot;

static_assert(sizeof(tr_snapshot_head) == 64, "file format");
static_assert(sizeof(tr_snapshot_slot) == 120, "file format");

/* The head of files of this model on these kernels.
 * Fields that the layout does not know are the caller's: model, fingerprint, activations,
 * ngram_size. */
void tr_snapshot_head_make(tr_snapshot_head *out, const tr_model_spec *spec);

/* Bytes of the state of a slot with so many computed positions. */
uint64_t tr_snapshot_state_size(const tr_snapshot_head *head, uint32_t computed_count);

/* -- writing: begin, for each slot slot and then exactly its state, end -- */

typedef struct tr_snapshot_writer tr_snapshot_writer;

/* Opens path with ".part" behind it. errors TR_E_INVALID the file, TR_E_NOMEM */
tr_status tr_snapshot_begin(tr_snapshot_writer **out, const char *path,
                            const tr_snapshot_head *head, tr_error *err);
tr_status tr_snapshot_add_slot(tr_snapshot_writer *w, const tr_snapshot_slot *slot,
                               const int32_t *tokens, tr_error *err);
tr_status tr_snapshot_add_state(tr_snapshot_writer *w, const void *bytes, size_t size,
                                tr_error *err);

/* Puts everything on the disk and gives the file its name; frees w whatever comes of it.
 *   size  bytes of the file */
tr_status tr_snapshot_end(tr_snapshot_writer *w, uint64_t *size, tr_error *err);

/* Takes what was written away and frees w. NULL is allowed. */
void tr_snapshot_abandon(tr_snapshot_writer *w);

/* -- reading -- */

typedef struct {
    tr_snapshot_slot slot;
    uint32_t number;              /* in the file, from 0 */
    uint64_t tokens_at, state_at; /* bytes from the beginning */
} tr_snapshot_entry;

typedef struct {
    int fd; /* owns */
    char path[TR_PATH_SIZE];
    uint64_t size;
    const _Atomic bool *given_up; /* borrows, may be NULL */
    tr_snapshot_entry entries[TR_SEQUENCES_MAX];
    uint32_t entries_count;
} tr_snapshot;

/* Opens and checks a whole file against the head that this cluster would write.
 *
 *   given_up  once true the reading ends (it can take minutes); borrowed until close, NULL: never
 *
 * errors  TR_E_INVALID with file, what was found and what was expected; TR_E_CANCELED given up */
tr_status tr_snapshot_open(tr_snapshot *out, const char *path, const tr_snapshot_head *expected,
                           const _Atomic bool *given_up, tr_error *err);

/* The same of an open file, which it takes over whatever comes of it. */
tr_status tr_snapshot_open_fd(tr_snapshot *out, int fd, const char *path,
                              const tr_snapshot_head *expected, const _Atomic bool *given_up,
                              tr_error *err);

/* Reads tokens of a slot, [first, first + count), and checks them: the file may have changed since
 * it was opened. errors  as tr_snapshot_read, TR_E_INVALID not one of the vocabulary */
tr_status tr_snapshot_read_tokens(const tr_snapshot *s, const tr_snapshot_entry *entry,
                                  uint32_t vocab_size, uint32_t first, uint32_t count, int32_t *out,
                                  tr_error *err);

/* errors  TR_E_INVALID the file has become shorter, or cannot be read; TR_E_CANCELED given up */
tr_status tr_snapshot_read(const tr_snapshot *s, uint64_t at, void *out, size_t size,
                           tr_error *err);

void tr_snapshot_close(tr_snapshot *s);

#endif
