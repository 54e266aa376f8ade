/* tokenizer.c - opens tokenizers and conducts a text through the steps of tokenizer_impl.h.
 *
 * Text from outside may be any bytes. Runs of valid UTF-8 go through all steps; bytes between them
 * go straight to the merges, so patterns and normalisation only ever see valid text. */
#include "core/model/tokenizer_impl.h"

#include "core/model/json.h"
#include "core/model/map.h"
#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utf8proc.h>

/* Room for a match to remember its choices in; 32 KiB of machine stack are used before it. */
#define JIT_STACK_BYTES_MAX ((size_t)4 << 20)

/* Steps of one match before it is given up: megabytes of text need a few million. */
#define MATCH_LIMIT 50000000u

typedef struct {
    const tr_tokenizer *t;
    bool specials;
    tr_ids out;
    tr_merge_scratch scratch;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack;
    tr_error *err;
} encoder;

/* ---- splitting ---- */

static tr_status split_failed(encoder *e, int code, size_t size)
{
    PCRE2_UCHAR message[120];

    pcre2_get_error_message(code, message, sizeof(message));
    return tr_fail(e->err, TR_E_INVALID, "pre-tokenizer pattern gave up on %zu bytes of text: %s",
                   size, (const char *)message);
}

/* Hands matches, and what lies between them, to the next pass. An empty match only cuts. */
static tr_status split_piece(encoder *e, uint32_t pass, const char *text, size_t size)
{
    size_t gap = 0, at = 0; /* gap: what was handed on ends here */
    tr_status status = TR_OK;

    if (size == 0)
        return TR_OK;
    if (pass == e->t->splits_count)
        return tr_merge_piece(e->t, &e->scratch, text, size, &e->out, e->err);
    const tr_split *split = &e->t->splits[pass];
    while (at < size && status == TR_OK) {
        int found = pcre2_match(split->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK,
                                e->match, e->context);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0)
            return split_failed(e, found, size);
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(e->match);
        size_t start = ends[0], end = ends[1];
        if (end < start || start < gap)
            return split_failed(e, PCRE2_ERROR_BADOFFSET, size); /* \K-like, refused at load */
        if (!split->drop_gaps)
            status = split_piece(e, pass + 1, text + gap, start - gap);
        if (!split->drop_matches && status == TR_OK)
            status = split_piece(e, pass + 1, text + start, end - start);
        gap = end;
        at = end;
        if (end == start && at < size) { /* go on behind the next character */
            uint32_t code;
            at += tr_utf8_decode(text + at, size - at, &code);
        }
    }
    if (status == TR_OK && !split->drop_gaps)
        status = split_piece(e, pass + 1, text + gap, size - gap);
    return status;
}

/* ---- normalising and cutting ---- */

/* Cuts valid text at the added tokens that are matched after normalisation. */
static tr_status encode_normal(encoder *e, const char *text, size_t size,
                               const unsigned char *input)
{
    size_t scan = 0, done = 0;
    tr_added_hit hit;

    while (
        tr_added_next(&e->t->added_normalized, text, size, &scan, done, e->specials, input, &hit)) {
        if (hit.start > done) {
            tr_status status = split_piece(e, 0, text + done, hit.start - done);
            if (status != TR_OK)
                return status;
        }
        tr_ids_push(&e->out, hit.id);
        done = hit.end;
    }
    return done < size ? split_piece(e, 0, text + done, size - done) : TR_OK;
}

/* Nothing below U+0300 changes under NFC, and nothing of ASCII under any form. */
static bool is_normal_already(tr_normal_form form, const char *text, size_t size)
{
    unsigned char lead_max = form == TR_NORMAL_NFC ? 0xCB : 0x7F;

    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] > lead_max)
            return false;
    return true;
}

static tr_status encode_valid(encoder *e, const char *text, size_t size, const unsigned char *input)
{
    static const utf8proc_option_t options[] = {
        [TR_NORMAL_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [TR_NORMAL_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [TR_NORMAL_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [TR_NORMAL_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *normal = NULL;

    if (e->t->normal == TR_NORMAL_NONE || is_normal_already(e->t->normal, text, size))
        return encode_normal(e, text, size, input);
    utf8proc_ssize_t normal_size = utf8proc_map(
        (const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &normal, options[e->t->normal]);
    if (normal_size < 0)
        return tr_fail(e->err, normal_size == UTF8PROC_ERROR_NOMEM ? TR_E_NOMEM : TR_E_INVALID,
                       "normalising %zu bytes: %s", size, utf8proc_errmsg(normal_size));

    /* Marks no longer fit a text that changed: then one byte from the input makes all input. */
    bool same = (size_t)normal_size == size && memcmp(normal, text, size) == 0;
    bool specials = e->specials;
    if (input != NULL && !same) {
        e->specials = specials && memchr(input, 1, size) == NULL;
        input = NULL;
    }
    tr_status status = encode_normal(e, (const char *)normal, (size_t)normal_size, input);
    e->specials = specials;
    free(normal);
    return status;
}

/* Text between added tokens: runs of valid UTF-8, and the bytes between those. */
static tr_status encode_segment(encoder *e, const char *text, size_t size,
                                const unsigned char *input)
{
    size_t at = 0;
    tr_status status = TR_OK;

    if (e->t->ranks != NULL)
        return tr_spm_encode(e->t, &e->scratch, text, size, &e->out, e->err);
    while (at < size && status == TR_OK) {
        size_t valid = tr_utf8_valid_prefix(text + at, size - at);
        if (valid > 0) {
            status = encode_valid(e, text + at, valid, input == NULL ? NULL : input + at);
            at += valid;
            continue;
        }
        size_t start = at;
        while (at < size && tr_utf8_valid_prefix(text + at, size - at < 4 ? size - at : 4) == 0)
            at++;
        status = tr_merge_piece(e->t, &e->scratch, text + start, at - start, &e->out, e->err);
    }
    return status;
}

static tr_status encode_text(encoder *e, const char *text, size_t size, const unsigned char *input)
{
    size_t scan = 0, done = 0;
    tr_added_hit hit;

    while (tr_added_next(&e->t->added, text, size, &scan, done, e->specials, input, &hit)) {
        if (hit.start > done) {
            tr_status status = encode_segment(e, text + done, hit.start - done,
                                              input == NULL ? NULL : input + done);
            if (status != TR_OK)
                return status;
        }
        tr_ids_push(&e->out, hit.id);
        done = hit.end;
    }
    if (done == size)
        return TR_OK;
    return encode_segment(e, text + done, size - done, input == NULL ? NULL : input + done);
}

tr_status tr_tokenizer_encode_marked(const tr_tokenizer *t, const char *text, size_t size,
                                     bool specials, const unsigned char *input, int32_t *ids,
                                     size_t ids_max, size_t *ids_count, tr_error *err)
{
    encoder e = {.t = t,
                 .specials = specials,
                 .out = {.ids = ids, .ids_max = ids_max, .count = *ids_count},
                 .err = err};
    tr_status status;
    assert(*ids_count <= ids_max);

    if (size > TR_ENCODE_BYTES_MAX)
        return tr_fail(err, TR_E_INVALID, "%zu bytes of text, the tokenizer takes at most %zu",
                       size, TR_ENCODE_BYTES_MAX);
    e.match = pcre2_match_data_create(1, NULL);
    e.context = pcre2_match_context_create(NULL);
    e.jit_stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_BYTES_MAX, NULL);
    if (e.match == NULL || e.context == NULL) {
        status = tr_fail(err, TR_E_NOMEM, "no memory to tokenize");
        goto free_engine;
    }
    pcre2_set_match_limit(e.context, MATCH_LIMIT);
    if (e.jit_stack != NULL) /* NULL where PCRE2 has no JIT */
        pcre2_jit_stack_assign(e.context, NULL, e.jit_stack);

    status = encode_text(&e, text, size, input);
    if (status == TR_OK) {
        *ids_count = e.out.count;
        if (e.out.count > ids_max)
            status =
                tr_fail(err, TR_E_NOMEM, "%zu tokens, there is room for %zu", e.out.count, ids_max);
    }

free_engine:
    tr_merge_scratch_free(&e.scratch);
    pcre2_jit_stack_free(e.jit_stack);
    pcre2_match_context_free(e.context);
    pcre2_match_data_free(e.match);
    return status;
}

tr_status tr_tokenizer_encode(const tr_tokenizer *tokenizer, const char *text, size_t size,
                              bool specials, int32_t *ids, size_t ids_max, size_t *ids_count,
                              tr_error *err)
{
    return tr_tokenizer_encode_marked(tokenizer, text, size, specials, NULL, ids, ids_max,
                                      ids_count, err);
}

tr_status tr_tokenizer_encode_prompt(const tr_tokenizer *tokenizer, const char *text, size_t size,
                                     bool specials, int32_t *ids, size_t ids_max, size_t *ids_count,
                                     tr_error *err)
{
    const char *bos;
    size_t bos_size;

    tr_tokenizer_token_bytes(tokenizer, tokenizer->bos, &bos, &bos_size);
    bool there = specials && bos_size > 0 && size >= bos_size && memcmp(text, bos, bos_size) == 0;
    if (tokenizer->bos >= 0 && !there) {
        if (*ids_count == ids_max) {
            ids_count[0]++;
            return tr_fail(err, TR_E_NOMEM, "%zu tokens, there is room for %zu", *ids_count,
                           ids_max);
        }
        ids[(*ids_count)++] = tokenizer->bos;
    }
    return tr_tokenizer_encode(tokenizer, text, size, specials, ids, ids_max, ids_count, err);
}

size_t tr_tokenizer_ids_max(const tr_tokenizer *tokenizer, size_t size)
{
    /* How many times its bytes a text can have after normalisation: UAX #15, "maximum expansion
     * factors" for UTF-8. */
    static const size_t growth[] = {[TR_NORMAL_NONE] = 1,
                                    [TR_NORMAL_NFC] = 3,
                                    [TR_NORMAL_NFD] = 3,
                                    [TR_NORMAL_NFKC] = 11,
                                    [TR_NORMAL_NFKD] = 11};

    /* A token has at least one byte; SentencePiece adds a space before each segment, and there is
     * at most one segment more than added tokens, which have a byte each. */
    return tokenizer->ranks != NULL ? 2 * size + 2 : growth[tokenizer->normal] * size + 1;
}

/* ---- opening and asking ---- */

tr_status tr_tokenizer_add_merge(tr_tokenizer *t, size_t index, const char *left, size_t left_size,
                                 const char *right, size_t right_size, const char *where,
                                 tr_error *err)
{
    char joined[1024];

    if (left_size + right_size > sizeof(joined))
        return tr_fail(err, TR_E_INVALID, "%s: merge %zu: %zu bytes, expected at most %zu", where,
                       index, left_size + right_size, sizeof(joined));
    memcpy(joined, left, left_size);
    memcpy(joined + left_size, right, right_size);
    int32_t left_id = tr_vocab_find(&t->vocab, left, left_size);
    int32_t right_id = tr_vocab_find(&t->vocab, right, right_size);
    int32_t id = tr_vocab_find(&t->vocab, joined, left_size + right_size);
    if (left_id < 0 || right_id < 0 || id < 0)
        return tr_fail(err, TR_E_INVALID,
                       "%s: merge %zu: \"%.*s\" + \"%.*s\": %s is not in the vocabulary", where,
                       index, (int)(left_size > 40 ? 40 : left_size), left,
                       (int)(right_size > 40 ? 40 : right_size), right,
                       left_id < 0    ? "the left half"
                       : right_id < 0 ? "the right half"
                                      : "the whole");
    if (!tr_merges_add(&t->merges, left_id, right_id, id, (uint32_t)index))
        return tr_fail(err, TR_E_INVALID, "%s: merge %zu: \"%.*s\" + \"%.*s\" is there already",
                       where, index, (int)(left_size > 40 ? 40 : left_size), left,
                       (int)(right_size > 40 ? 40 : right_size), right);
    return TR_OK;
}

tr_status tr_tokenizer_seal(tr_tokenizer *t, const char *where, tr_error *err)
{
    uint32_t found = 0;

    tr_added_seal(&t->added);
    tr_added_seal(&t->added_normalized);
    for (int byte = 0; byte < 256; byte++) {
        char letter[2], value = (char)byte;
        size_t size = tr_bytes_to_alphabet(&value, 1, letter);
        t->byte_ids[byte] = tr_vocab_find(&t->vocab, letter, size);
        found += t->byte_ids[byte] >= 0;
    }
    /* Some vocabularies lack bytes that never occurred in their training text, but printable ASCII
     * is in all: a file without it is not in the byte alphabet. */
    for (int byte = '!'; byte <= '~'; byte++)
        if (t->byte_ids[byte] < 0)
            return tr_fail(err, TR_E_INVALID,
                           "%s: no token for byte 0x%02X (%u of 256 are there), expected a "
                           "vocabulary in GPT-2's byte alphabet",
                           where, (unsigned int)byte, found);
    return TR_OK;
}

/* Takes a zeroed tokenizer as far as read got it; frees it when that was not to the end. */
static tr_status finish_open(tr_tokenizer **out, tr_tokenizer *t, tr_status status)
{
    if (status == TR_OK)
        *out = t;
    else
        tr_tokenizer_close(t);
    return status;
}

tr_status tr_tokenizer_from_json(tr_tokenizer **out, const char *name, const char *bytes,
                                 size_t size, tr_error *err)
{
    tr_tokenizer *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a tokenizer", name);
    return finish_open(out, t, tr_tokenizer_read_json(t, name, bytes, size, err));
}

tr_status tr_tokenizer_from_gguf(tr_tokenizer **out, const tr_gguf *gguf, tr_error *err)
{
    tr_tokenizer *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a tokenizer", tr_gguf_name(gguf));
    return finish_open(out, t, tr_tokenizer_read_gguf(t, gguf, err));
}

tr_status tr_tokenizer_from_tiktoken(tr_tokenizer **out, const char *bytes, size_t size,
                                     json_t *config, tr_error *err)
{
    tr_tokenizer *t = calloc(1, sizeof(*t));

    if (t == NULL)
        return tr_fail(err, TR_E_NOMEM, "tiktoken.model: no memory for a tokenizer");
    return finish_open(out, t, tr_tokenizer_read_tiktoken(t, bytes, size, config, err));
}

static tr_status open_gguf_file(tr_tokenizer **out, const char *path, tr_error *err)
{
    tr_gguf *gguf;

    tr_status status = tr_gguf_open(&gguf, path, err);
    if (status != TR_OK)
        return status;
    status = tr_tokenizer_from_gguf(out, gguf, err);
    tr_gguf_close(gguf);
    return status;
}

/* The path of a file in the folder. */
static tr_status folder_path(char *path, size_t size, const char *folder, const char *file,
                             tr_error *err)
{
    if (snprintf(path, size, "%s/%s", folder, file) >= (int)size)
        return tr_fail(err, TR_E_INVALID, "%.80s...: the path is too long", folder);
    return TR_OK;
}

static tr_status open_json_file(tr_tokenizer **out, const char *path, tr_error *err)
{
    uint8_t *text;
    size_t size;

    tr_status status = tr_file_read(&text, &size, path, err);
    if (status != TR_OK)
        return status;
    status = tr_tokenizer_from_json(out, path, (const char *)text, size, err);
    free(text);
    return status;
}

static tr_status open_tiktoken_file(tr_tokenizer **out, const char *path, const char *config_path,
                                    tr_error *err)
{
    json_t *config;
    uint8_t *text;
    size_t size;

    tr_status status = tr_json_read(&config, config_path, err);
    if (status != TR_OK)
        return status;
    status = tr_file_read(&text, &size, path, err);
    if (status == TR_OK) {
        status = tr_tokenizer_from_tiktoken(out, (const char *)text, size, config, err);
        free(text);
    }
    json_decref(config);
    return status;
}

/* tokenizer.json, or else tiktoken.model where that is what the folder has. */
static tr_status open_folder(tr_tokenizer **out, const char *folder, tr_error *err)
{
    char path[4096], tiktoken[4096], config[4096];

    tr_status status = folder_path(path, sizeof(path), folder, "tokenizer.json", err);
    if (status == TR_OK)
        status = folder_path(tiktoken, sizeof(tiktoken), folder, "tiktoken.model", err);
    if (status == TR_OK)
        status = folder_path(config, sizeof(config), folder, "tokenizer_config.json", err);
    if (status != TR_OK)
        return status;
    if (access(path, F_OK) != 0 && access(tiktoken, F_OK) == 0)
        return open_tiktoken_file(out, tiktoken, config, err);
    return open_json_file(out, path, err);
}

tr_status tr_tokenizer_open(tr_tokenizer **out, const char *model_path, tr_error *err)
{
    struct stat st;

    if (stat(model_path, &st) != 0)
        return tr_fail(err, TR_E_INVALID, "%s: %s", model_path, strerror(errno));
    return S_ISDIR(st.st_mode) ? open_folder(out, model_path, err)
                               : open_gguf_file(out, model_path, err);
}

void tr_tokenizer_close(tr_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    for (uint32_t i = 0; i < tokenizer->splits_count; i++)
        pcre2_code_free(tokenizer->splits[i].code);
    tr_added_free(&tokenizer->added);
    tr_added_free(&tokenizer->added_normalized);
    tr_merges_free(&tokenizer->merges);
    tr_vocab_free(&tokenizer->vocab);
    free(tokenizer->special);
    free(tokenizer->ranks);
    free(tokenizer);
}

void tr_tokenizer_token_bytes(const tr_tokenizer *tokenizer, int32_t id, const char **bytes,
                              size_t *size)
{
    *bytes = "";
    *size = 0;
    if (id < 0 || (uint32_t)id >= tokenizer->vocab.count ||
        tokenizer->vocab.tokens[id].text == NULL)
        return;
    *bytes = tokenizer->vocab.tokens[id].bytes;
    *size = tokenizer->vocab.tokens[id].bytes_size;
}

bool tr_tokenizer_is_special(const tr_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && (uint32_t)id < tokenizer->vocab.count && tokenizer->special[id] != 0;
}

int32_t tr_tokenizer_find(const tr_tokenizer *tokenizer, const char *text)
{
    return tr_vocab_find(&tokenizer->vocab, text, strlen(text));
}

uint32_t tr_tokenizer_vocab_size(const tr_tokenizer *tokenizer)
{
    return tokenizer->vocab.count;
}

int32_t tr_tokenizer_bos(const tr_tokenizer *tokenizer)
{
    return tokenizer->bos;
}
