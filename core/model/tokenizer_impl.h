/* tokenizer_impl.h - what the files of the tokenizer share. Nobody else includes it.
 *
 * The life of a text (tokenizer.c conducts):
 *
 *   text --cut at added tokens (tokenizer_added.c)--> segments
 *        --normalise, cut at normalised added tokens--> segments
 *        --split by patterns (tokenizer_pattern.c)--> pieces
 *        --merge (tokenizer_bpe.c)--> ids
 *
 * Everything works on bytes: the byte alphabet of GPT-2, in which vocabularies are written, is
 * translated once at load (tokenizer_vocab.c).
 *
 * The other kind, SentencePiece, has scores instead of merges and neither forms nor patterns: a
 * segment goes from the added tokens to tokenizer_spm.c. */
#ifndef TR_CORE_MODEL_TOKENIZER_IMPL_H
#define TR_CORE_MODEL_TOKENIZER_IMPL_H

#include "core/model/gguf.h"
#include "core/model/tokenizer.h"

#include <jansson.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* The largest published vocabularies have 262,144 entries. Bounds what a file can make us take. */
#define TR_TOKENS_MAX (1u << 22)

/* Passes of the pre-tokenizer; the longest published chain has four. */
#define TR_SPLITS_MAX 8

/* One call's text. A chat request is bounded far below by the HTTP side. */
#define TR_ENCODE_BYTES_MAX ((size_t)64 << 20)

/* ---- vocabulary ---- */

typedef struct {
    const char *text;  /* as it stands in the file; owned by the vocab. NULL: no such id */
    const char *bytes; /* what it means in text; may be text itself */
    uint32_t text_size, bytes_size;
} tr_token;

typedef struct {
    tr_token *tokens; /* owns, [count] */
    uint32_t count;   /* largest id + 1 */
    uint32_t *slots;  /* owns, [slots_mask + 1]: id + 1, 0 = free; text -> id */
    uint32_t slots_mask;
} tr_vocab;

tr_status tr_vocab_init(tr_vocab *vocab, uint32_t count, const char *where, tr_error *err);

/* What the text of a token in a file stands for. */
typedef enum {
    TR_TEXT_PLAIN,    /* itself: added tokens */
    TR_TEXT_ALPHABET, /* bytes, in GPT-2's byte alphabet; a text that leaves it stands for itself,
                       * as in Hugging Face's decoder */
    TR_TEXT_BLOCKS,   /* itself, with U+2581 for each space */
    TR_TEXT_BYTE      /* "<0x0A>": one byte */
} tr_text_kind;

/* Sets the text of an id and makes it findable; a text that is there already now means id.
 * errors  TR_E_INVALID when the id is taken, or a TR_TEXT_BYTE is not written so */
tr_status tr_vocab_set(tr_vocab *vocab, uint32_t id, const char *text, size_t size,
                       tr_text_kind kind, const char *where, tr_error *err);
void tr_vocab_free(tr_vocab *vocab);

/* -1 when there is none. */
int32_t tr_vocab_find(const tr_vocab *vocab, const char *text, size_t size);

/* Writes bytes in the byte alphabet to out [2 * size], returns the size. */
size_t tr_bytes_to_alphabet(const char *bytes, size_t size, char *out);

/* ---- added tokens ---- */

typedef struct {
    const char *text; /* owns */
    size_t size;
    int32_t id;
    bool special;     /* matched only where specials are on */
    bool single_word; /* no word character may touch it */
    bool lstrip;      /* swallows white space before it */
    bool rstrip;      /* and after it */
} tr_added;

typedef struct {
    tr_added *items; /* owns, [count], sorted by text once sealed */
    uint32_t count, capacity;
} tr_added_set;

/* Where an added token was found; [start, end) includes swallowed white space. */
typedef struct {
    size_t start, end;
    int32_t id;
} tr_added_hit;

tr_status tr_added_push(tr_added_set *set, const tr_added *added, const char *where, tr_error *err);
void tr_added_seal(tr_added_set *set);
void tr_added_free(tr_added_set *set);

/* The next token at or after *scan: leftmost, longest at equal start. A match that flags forbid is
 * stepped over as a whole, as Hugging Face does. Matching goes on at *scan afterwards.
 *
 *   floor   white space is not swallowed before this offset
 *   input   [size] or NULL: special tokens are not matched over bytes that are marked 1 */
bool tr_added_next(const tr_added_set *set, const char *text, size_t size, size_t *scan,
                   size_t floor, bool specials, const unsigned char *input, tr_added_hit *hit);

/* ---- splitting ---- */

typedef struct {
    pcre2_code *code; /* owns */
    bool drop_matches, drop_gaps;
} tr_split;

/* Compiles a pattern written for oniguruma (what Hugging Face runs) so that PCRE2 finds the same.
 * Constructs that the two read differently are rewritten where that is exact and otherwise refused
 * by name. where stands in errors. */
tr_status tr_pattern_compile(pcre2_code **out, const char *pattern, size_t size, const char *where,
                             tr_error *err);

/* The pattern that plain ByteLevel pre-tokenizers use; single digits; and that of Kimi's files,
 * which leave it to their program. */
extern const char tr_pattern_gpt2[];
extern const char tr_pattern_number[];
extern const char tr_pattern_kimi[];

/* ---- merging ---- */

typedef struct {
    uint64_t pair; /* left id << 32 | right id; all ones: free */
    uint32_t rank; /* lower merges first */
    int32_t id;    /* what the pair becomes */
} tr_merge;

typedef struct {
    tr_merge *slots; /* owns, [slots_mask + 1] */
    uint32_t slots_mask, count;
} tr_merges;

tr_status tr_merges_init(tr_merges *merges, size_t count, const char *where, tr_error *err);

/* False when the pair is there already. */
bool tr_merges_add(tr_merges *merges, int32_t left, int32_t right, int32_t id, uint32_t rank);
void tr_merges_free(tr_merges *merges);

typedef enum {
    TR_NORMAL_NONE,
    TR_NORMAL_NFC,
    TR_NORMAL_NFD,
    TR_NORMAL_NFKC,
    TR_NORMAL_NFKD
} tr_normal_form;

struct tr_tokenizer {
    tr_vocab vocab;
    unsigned char *special;        /* owns, [vocab.count]: 1 for special tokens */
    tr_added_set added;            /* cut from the text as it came */
    tr_added_set added_normalized; /* cut after normalisation */
    tr_normal_form normal;
    tr_split splits[TR_SPLITS_MAX];
    uint32_t splits_count;
    tr_merges merges;
    bool ignore_merges; /* a piece that is a token as a whole is not merged */
    bool fuse_unknown;
    int32_t unknown;       /* for bytes without a token; -1: they vanish, as in both references */
    int32_t byte_ids[256]; /* -1: no token */
    int32_t bos;           /* stands before every plain text; -1: nothing does */
    uint32_t *ranks;    /* owns, [vocab.count]: SentencePiece, tokens by falling score; NULL: BPE */
    bool space_prefix;  /* SentencePiece: a space goes before each segment */
    bool cut_at_spaces; /* SentencePiece: no token has a space behind another character */
};

/* Scratch of one encode call, grown to the largest piece. */
typedef struct {
    int32_t id;          /* -1: merged into its left neighbour; SentencePiece: bytes, 0 if merged */
    uint32_t prev, next; /* symbols; UINT32_MAX at the ends */
} tr_symbol;

typedef struct {
    uint64_t key;            /* rank << 32 | position: lowest rank first, leftmost at equal rank */
    int32_t left, right, id; /* of the two symbols when the candidate was pushed, and of both */
} tr_candidate;

typedef struct {
    tr_symbol *symbols;
    tr_candidate *heap;
    char *alphabet;  /* a piece in the byte alphabet, for ignore_merges */
    size_t capacity; /* bytes of the largest piece that fits */
} tr_merge_scratch;

/* Where a call's ids go. count may pass ids_max: then the rest is only counted. */
typedef struct {
    int32_t *ids;
    size_t ids_max, count;
} tr_ids;

static inline void tr_ids_push(tr_ids *out, int32_t id)
{
    if (out->count < out->ids_max)
        out->ids[out->count] = id;
    out->count++;
}

/* Merges one piece and appends its ids. errors TR_E_NOMEM */
tr_status tr_merge_piece(const tr_tokenizer *t, tr_merge_scratch *scratch, const char *bytes,
                         size_t size, tr_ids *out, tr_error *err);
/* Makes room for a piece of size bytes. errors TR_E_NOMEM */
tr_status tr_merge_scratch_reserve(tr_merge_scratch *scratch, size_t size, tr_error *err);
void tr_merge_scratch_free(tr_merge_scratch *scratch);

/* A binary heap of candidates, least key first. Both return the new count. */
size_t tr_candidates_push(tr_candidate *heap, size_t count, tr_candidate candidate);
size_t tr_candidates_pop(tr_candidate *heap, size_t count, tr_candidate *top);

/* Encodes one segment by scores, for a tokenizer with ranks. errors TR_E_NOMEM */
tr_status tr_spm_encode(const tr_tokenizer *t, tr_merge_scratch *scratch, const char *text,
                        size_t size, tr_ids *out, tr_error *err);

/* Turns scores [vocab.count] (highest merges first) into ranks, and finds out what tr_spm_encode
 * relies on: byte tokens or an unknown token, and a token for the space.
 * errors  TR_E_INVALID when one of these is missing, TR_E_NOMEM */
tr_status tr_spm_seal(tr_tokenizer *t, const float *scores, const char *where, tr_error *err);

/* Encodes with marks: a special token is recognised only where all its bytes are marked 0 (from
 * the template). input == NULL: nothing is marked. Otherwise as tr_tokenizer_encode. */
tr_status tr_tokenizer_encode_marked(const tr_tokenizer *t, const char *text, size_t size,
                                     bool specials, const unsigned char *input, int32_t *ids,
                                     size_t ids_max, size_t *ids_count, tr_error *err);

/* ---- sources ---- */

/* Fills a zeroed tokenizer. On failure the caller frees what was filled. */
tr_status tr_tokenizer_read_json(tr_tokenizer *t, const char *name, const char *bytes, size_t size,
                                 tr_error *err);
tr_status tr_tokenizer_read_gguf(tr_tokenizer *t, const tr_gguf *gguf, tr_error *err);

/* The bytes of a tiktoken.model, with its tokenizer_config.json. */
tr_status tr_tokenizer_read_tiktoken(tr_tokenizer *t, const char *bytes, size_t size,
                                     json_t *config, tr_error *err);

/* From what was read already, for tests and fuzzing. name stands in errors. */
tr_status tr_tokenizer_from_json(tr_tokenizer **out, const char *name, const char *bytes,
                                 size_t size, tr_error *err);
tr_status tr_tokenizer_from_gguf(tr_tokenizer **out, const tr_gguf *gguf, tr_error *err);
tr_status tr_tokenizer_from_tiktoken(tr_tokenizer **out, const char *bytes, size_t size,
                                     json_t *config, tr_error *err);

/* Adds merge number index: looks the halves and the whole up, all in the byte alphabet.
 * errors  TR_E_INVALID when one is no token, or the pair is there already */
tr_status tr_tokenizer_add_merge(tr_tokenizer *t, size_t index, const char *left, size_t left_size,
                                 const char *right, size_t right_size, const char *where,
                                 tr_error *err);

/* What both sources do last: byte ids, and added tokens sorted. */
tr_status tr_tokenizer_seal(tr_tokenizer *t, const char *where, tr_error *err);

#endif
