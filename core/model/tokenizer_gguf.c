/* tokenizer_gguf.c - the tokenizer inside a GGUF file, of the kinds "gpt2" (byte-level BPE) and
 * "llama" (SentencePiece's BPE).
 *
 * A file of the first kind names its pre-tokenizer (tokenizer.ggml.pre) instead of giving the
 * pattern. The patterns behind the names, and the options that come with them, are the table here.
 */
#include "core/model/tokenizer_impl.h"

#include "core/model/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer.ggml.token_type */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_UNUSED = 5,
    TYPE_BYTE = 6
};

/* Pieces that the patterns below share. */
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define UPPER_KIMI  "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER_KIMI  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define PREFIX      "[^\\r\\n\\p{L}\\p{N}]?"

static const char pattern_qwen2[] = CONTRACTION "|" PREFIX "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+"
                                                "[\\r\\n]*|" SPACES;
static const char pattern_llama3[] = CONTRACTION "|" PREFIX "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}"
                                                 "\\p{N}]+[\\r\\n]*|" SPACES;
static const char pattern_qwen35[] = CONTRACTION "|" PREFIX "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}"
                                                 "\\p{M}\\p{N}]+[\\r\\n]*|" SPACES;
static const char pattern_gpt4o[] =
    PREFIX UPPER "*" LOWER "+" CONTRACTION "?|" PREFIX UPPER "+" LOWER "*" CONTRACTION
                 "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
static const char pattern_tekken[] = PREFIX UPPER
    "*" LOWER "+|" PREFIX UPPER "+" LOWER "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES;
const char tr_pattern_kimi[] =
    "\\p{Han}+|" PREFIX UPPER_KIMI "*" LOWER_KIMI "+" CONTRACTION "?|" PREFIX UPPER_KIMI
    "+" LOWER_KIMI "*" CONTRACTION "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES;
static const char pattern_digits3[] = "\\p{N}{1,3}";
static const char pattern_cjk[] = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
static const char pattern_dsv3[] =
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
    "[\\r\\n]*|" SPACES;
static const char pattern_punctuation[] = "[\\p{P}\\$\\+<=>\\^~\\|]+";
static const char pattern_numbers[] = "\\p{N}+";
static const char pattern_three_digits[] = "[0-9][0-9][0-9]";

/* A row per pre-tokenizer: its passes, whether whole tokens are taken without merging, and whether
 * BOS stands before a text when the file does not say, or never. */
typedef struct {
    const char *names; /* between spaces */
    const char *passes[4];
    bool ignore_merges, add_bos, no_bos;
} pre_row;

static const pre_row pre_rows[] = {
    {" llama-bpe llama3 llama-v3 falcon3 lfm2 pixtral ", {pattern_llama3}, true, true, false},
    {" qwen2 deepseek-r1-qwen megrez hunyuan stablelm2 grok-2 solar-open ",
     {pattern_qwen2},
     false,
     false,
     false},
    {" qwen35 ", {pattern_qwen35}, false, false, false},
    {" glm4 chatglm-bpe ", {pattern_llama3}, false, false, true},
    {" smollm starcoder refact command-r codeshell exaone mellum2 ",
     {tr_pattern_number, tr_pattern_gpt2},
     false,
     false,
     false},
    {" gpt-2 phi-2 mpt olmo jais exaone4 modern-bert ", {tr_pattern_gpt2}, false, false, false},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     {pattern_digits3, pattern_cjk, pattern_dsv3},
     false,
     false,
     false},
    {" kimi-k2 ", {tr_pattern_kimi}, false, false, false},
    {" gpt-4o llama4 kanana2 minimax-m2 ", {pattern_gpt4o}, false, false, false},
    {" tekken ", {pattern_tekken}, true, true, false},
    {" default ",
     {pattern_punctuation, tr_pattern_gpt2, pattern_numbers, pattern_three_digits},
     false,
     false,
     false},
};

static const pre_row *find_pre(const char *name, size_t size)
{
    char key[64];

    if (size == 0 || size > sizeof(key) - 3 || memchr(name, ' ', size) != NULL ||
        memchr(name, '\0', size) != NULL)
        return NULL;
    snprintf(key, sizeof(key), " %.*s ", (int)size, name);
    for (size_t i = 0; i < sizeof(pre_rows) / sizeof(pre_rows[0]); i++)
        if (strstr(pre_rows[i].names, key) != NULL)
            return &pre_rows[i];
    return NULL;
}

/* How BOS stands before a text. */
typedef struct {
    bool add;   /* when the file does not say */
    bool never; /* whatever the file says */
    int64_t id; /* when the file does not say; -1: it must */
} bos_rule;

static tr_status read_pre(tr_tokenizer *t, const tr_gguf *gguf, bos_rule *bos, tr_error *err)
{
    const char *name = "default";
    size_t size = strlen(name);
    const char *file = tr_gguf_name(gguf);

    if (tr_gguf_has(gguf, "tokenizer.ggml.pre")) {
        tr_status status = tr_gguf_text(gguf, "tokenizer.ggml.pre", &name, &size, err);
        if (status != TR_OK)
            return status;
    }
    const pre_row *row = find_pre(name, size);
    if (row == NULL)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tokenizer.ggml.pre: \"%.*s\" is not among the known pre-tokenizers",
                       file, (int)(size > 60 ? 60 : size), name);
    for (size_t i = 0; i < 4 && row->passes[i] != NULL; i++) {
        tr_status status = tr_pattern_compile(&t->splits[i].code, row->passes[i],
                                              strlen(row->passes[i]), file, err);
        if (status != TR_OK)
            return status;
        t->splits_count++;
    }
    t->ignore_merges = row->ignore_merges;
    *bos = (bos_rule){.add = row->add_bos, .never = row->no_bos, .id = -1};
    return TR_OK;
}

/* What the text of a token stands for, in a vocabulary of texts in the byte alphabet or with
 * blocks for spaces. */
static tr_text_kind text_kind(tr_text_kind vocabulary, int64_t type)
{
    if (type == TYPE_CONTROL || type == TYPE_UNKNOWN || type == TYPE_USER_DEFINED)
        return TR_TEXT_PLAIN;
    return type == TYPE_BYTE && vocabulary == TR_TEXT_BLOCKS ? TR_TEXT_BYTE : vocabulary;
}

/* Control and unknown tokens are special; user-defined ones are matched everywhere. */
static tr_status read_token(tr_tokenizer *t, uint32_t id, const char *text, size_t size,
                            int64_t type, tr_text_kind vocabulary, const char *file, tr_error *err)
{
    bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
    bool added = special || type == TYPE_USER_DEFINED;

    if (type < TYPE_NORMAL || type > TYPE_BYTE)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tokenizer.ggml.token_type of token %u: %lld, expected 1 to 6", file, id,
                       (long long)type);
    if (size > 4096)
        return tr_fail(err, TR_E_INVALID,
                       "%s: tokenizer.ggml.tokens: token %u has %zu bytes, expected at most 4096",
                       file, id, size);
    tr_status status =
        tr_vocab_set(&t->vocab, id, text, size, text_kind(vocabulary, type), file, err);
    if (status != TR_OK || !added || size == 0)
        return status;
    t->special[id] = special;
    return tr_added_push(
        &t->added, &(tr_added){.text = text, .size = size, .id = (int32_t)id, .special = special},
        file, err);
}

static tr_status read_tokens(tr_tokenizer *t, const tr_gguf *gguf, tr_text_kind vocabulary,
                             tr_error *err)
{
    const char *file = tr_gguf_name(gguf);
    tr_gguf_array tokens, types = {0};

    tr_status status = tr_gguf_get_array(gguf, "tokenizer.ggml.tokens", TR_GGUF_TEXT, &tokens, err);
    bool typed = tr_gguf_has(gguf, "tokenizer.ggml.token_type");
    if (status == TR_OK && typed)
        status = tr_gguf_get_array(gguf, "tokenizer.ggml.token_type", TR_GGUF_I32, &types, err);
    if (status != TR_OK)
        return status;
    if (tokens.count > TR_TOKENS_MAX || (typed && types.count != tokens.count))
        return tr_fail(err, TR_E_INVALID,
                       "%s: tokenizer.ggml.tokens: %llu with %llu token_type, expected as many of "
                       "both and at most %u",
                       file, (unsigned long long)tokens.count, (unsigned long long)types.count,
                       TR_TOKENS_MAX);
    uint32_t count = (uint32_t)tokens.count;
    status = tr_vocab_init(&t->vocab, count, file, err);
    if (status != TR_OK)
        return status;
    t->special = calloc(count, 1);
    if (t->special == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %u tokens", file, count);
    for (uint32_t id = 0; id < count; id++) {
        const char *text;
        size_t size;
        tr_gguf_array_next_text(&tokens, &text, &size);
        status = read_token(t, id, text, size, typed ? tr_gguf_array_i64(&types, id) : TYPE_NORMAL,
                            vocabulary, file, err);
        if (status != TR_OK)
            return status;
    }
    return TR_OK;
}

/* A merge is "a b", cut at the first space that is not its first byte. */
static tr_status read_merges(tr_tokenizer *t, const tr_gguf *gguf, tr_error *err)
{
    const char *file = tr_gguf_name(gguf);
    tr_gguf_array merges;

    tr_status status = tr_gguf_get_array(gguf, "tokenizer.ggml.merges", TR_GGUF_TEXT, &merges, err);
    if (status == TR_OK)
        status = tr_merges_init(&t->merges, merges.count, file, err);
    for (size_t i = 0; status == TR_OK && merges.count > 0; i++) {
        const char *text;
        size_t size;
        tr_gguf_array_next_text(&merges, &text, &size);
        const char *space = size < 2 ? NULL : memchr(text + 1, ' ', size - 1);
        if (space == NULL)
            return tr_fail(err, TR_E_INVALID, "%s: tokenizer.ggml.merges: %zu has no space", file,
                           i);
        size_t left = (size_t)(space - text);
        status = tr_tokenizer_add_merge(t, i, text, left, space + 1, size - left - 1, file, err);
    }
    return status;
}

/* A token id under key, fallback when there is no such key (-1: there must be one). */
static tr_status read_token_id(const tr_tokenizer *t, const tr_gguf *gguf, const char *key,
                               int64_t fallback, int32_t *out, tr_error *err)
{
    uint64_t id = (uint64_t)fallback;

    if (fallback < 0 || tr_gguf_has(gguf, key)) {
        tr_status status = tr_gguf_u64(gguf, key, &id, err);
        if (status != TR_OK)
            return status;
    }
    if (id >= t->vocab.count)
        return tr_fail(err, TR_E_INVALID, "%s: %s: %llu, expected below %u", tr_gguf_name(gguf),
                       key, (unsigned long long)id, t->vocab.count);
    *out = (int32_t)id;
    return TR_OK;
}

static tr_status read_bos(tr_tokenizer *t, const tr_gguf *gguf, bos_rule bos, tr_error *err)
{
    if (tr_gguf_has(gguf, "tokenizer.ggml.add_bos_token")) {
        tr_status status = tr_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &bos.add, err);
        if (status != TR_OK)
            return status;
    }
    if (!bos.add || bos.never)
        return TR_OK;
    return read_token_id(t, gguf, "tokenizer.ggml.bos_token_id", bos.id, &t->bos, err);
}

/* ---- "gpt2" ---- */

static tr_status read_gpt2(tr_tokenizer *t, const tr_gguf *gguf, tr_error *err)
{
    bos_rule bos;

    tr_status status = read_pre(t, gguf, &bos, err);
    if (status == TR_OK)
        status = read_tokens(t, gguf, TR_TEXT_ALPHABET, err);
    if (status == TR_OK)
        status = read_merges(t, gguf, err);
    if (status == TR_OK)
        status = read_bos(t, gguf, bos, err);
    if (status == TR_OK)
        status = tr_tokenizer_seal(t, tr_gguf_name(gguf), err);
    return status;
}

/* ---- "llama" ---- */

static tr_status seal_scores(tr_tokenizer *t, const tr_gguf *gguf, tr_error *err)
{
    const char *file = tr_gguf_name(gguf);
    tr_gguf_array array;
    uint32_t count = t->vocab.count;

    tr_status status = tr_gguf_get_array(gguf, "tokenizer.ggml.scores", TR_GGUF_F32, &array, err);
    if (status != TR_OK)
        return status;
    if (array.count != count)
        return tr_fail(err, TR_E_INVALID, "%s: tokenizer.ggml.scores: %llu for %u tokens", file,
                       (unsigned long long)array.count, count);
    float *scores = malloc(count * sizeof(*scores));
    if (scores == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %u scores", file, count);
    for (uint32_t id = 0; id < count && status == TR_OK; id++) {
        scores[id] = (float)tr_gguf_array_f64(&array, id);
        if (!isfinite(scores[id]))
            status = tr_fail(err, TR_E_INVALID,
                             "%s: tokenizer.ggml.scores of token %u: %g, expected a finite number",
                             file, id, (double)scores[id]);
    }
    if (status == TR_OK)
        status = tr_spm_seal(t, scores, file, err);
    free(scores);
    return status;
}

static tr_status read_llama(tr_tokenizer *t, const tr_gguf *gguf, tr_error *err)
{
    const bos_rule bos = {.add = true, .id = 1};

    t->space_prefix = true;
    tr_status status = read_tokens(t, gguf, TR_TEXT_BLOCKS, err);
    if (status == TR_OK && tr_gguf_has(gguf, "tokenizer.ggml.add_space_prefix"))
        status = tr_gguf_bool(gguf, "tokenizer.ggml.add_space_prefix", &t->space_prefix, err);
    if (status == TR_OK)
        status = read_token_id(t, gguf, "tokenizer.ggml.unknown_token_id", 0, &t->unknown, err);
    if (status == TR_OK)
        status = read_bos(t, gguf, bos, err);
    if (status == TR_OK)
        status = seal_scores(t, gguf, err);
    return status;
}

tr_status tr_tokenizer_read_gguf(tr_tokenizer *t, const tr_gguf *gguf, tr_error *err)
{
    const char *kind;
    size_t size;

    t->bos = -1;
    t->unknown = -1;
    tr_status status = tr_gguf_text(gguf, "tokenizer.ggml.model", &kind, &size, err);
    if (status != TR_OK)
        return status;
    if (size == 4 && memcmp(kind, "gpt2", 4) == 0)
        return read_gpt2(t, gguf, err);
    if (size == 5 && memcmp(kind, "llama", 5) == 0)
        return read_llama(t, gguf, err);
    return tr_fail(err, TR_E_INVALID,
                   "%s: tokenizer.ggml.model: \"%.*s\", expected \"gpt2\" or \"llama\"",
                   tr_gguf_name(gguf), (int)(size > 60 ? 60 : size), kind);
}
