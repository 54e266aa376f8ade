/* tokenizer.h - text to token ids and back: byte-level BPE from tokenizer.json, tiktoken.model or
 * GGUF, and SentencePiece's BPE from GGUF. */
#ifndef TR_CORE_MODEL_TOKENIZER_H
#define TR_CORE_MODEL_TOKENIZER_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tr_tokenizer tr_tokenizer;

/* From a model path: a Hugging Face directory (tokenizer.json, else tiktoken.model) or a GGUF file.
 * Read-only afterwards, any number of threads may use it. The caller owns *out. errors TR_E_INVALID
 * with file, key, found, expected */
tr_status tr_tokenizer_open(tr_tokenizer **out, const char *model_path, tr_error *err);
void tr_tokenizer_close(tr_tokenizer *tokenizer);

/* Encodes text [size] bytes (any bytes; invalid UTF-8 becomes what the byte alphabet gives).
 *
 *   specials  true: the text of a special token becomes that token; false: it is ordinary text
 *   ids       [ids_max], appended from *ids_count on
 *   ids_count in/out
 *
 * errors  TR_E_NOMEM when ids_max is too small (ids_count then says how many were needed at least),
 *         TR_E_INVALID when the pattern engine gave up (match limit) */
tr_status tr_tokenizer_encode(const tr_tokenizer *tokenizer, const char *text, size_t size,
                              bool specials, int32_t *ids, size_t ids_max, size_t *ids_count,
                              tr_error *err);

/* The same for a text that stands alone: first the token of tr_tokenizer_bos, unless there is none
 * or the text begins with it as a special token. */
tr_status tr_tokenizer_encode_prompt(const tr_tokenizer *tokenizer, const char *text, size_t size,
                                     bool specials, int32_t *ids, size_t ids_max, size_t *ids_count,
                                     tr_error *err);

/* The most ids that size bytes of text can become, BOS included. */
size_t tr_tokenizer_ids_max(const tr_tokenizer *tokenizer, size_t size);

/* Bytes of one token as they appear in text (a token may be part of a UTF-8 character). Special
 * tokens give their text. *bytes is borrowed from the tokenizer. Unknown id: size 0. */
void tr_tokenizer_token_bytes(const tr_tokenizer *tokenizer, int32_t id, const char **bytes,
                              size_t *size);

bool tr_tokenizer_is_special(const tr_tokenizer *tokenizer, int32_t id);

/* Id of a token by its exact text ("<|im:end|>"), -1 if there is none. */
int32_t tr_tokenizer_find(const tr_tokenizer *tokenizer, const char *text);

uint32_t tr_tokenizer_vocab_size(const tr_tokenizer *tokenizer);

/* The token that stands before every plain text (post_processor of tokenizer.json, add_bos_token of
 * GGUF), -1 when there is none. tr_tokenizer_encode does not add it: rendered chats have their own.
 */
int32_t tr_tokenizer_bos(const tr_tokenizer *tokenizer);

/* Turns a stream of tokens into whole UTF-8 characters: bytes that do not complete a character are
 * held back; bytes that can never be valid become U+FFFD. */
typedef struct {
    unsigned char held[4];
    uint32_t held_size;
} tr_utf8_stream;

/* Appends bytes; writes what is complete to out [out_max], returns its size. out_max must be at
 * least 3 * size + 12. final: flush what is held. */
size_t tr_utf8_stream_push(tr_utf8_stream *s, const char *bytes, size_t size, bool final, char *out,
                           size_t out_max);

#endif
