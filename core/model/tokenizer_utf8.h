/* tokenizer_utf8.h - reading UTF-8 that may be broken, and the character classes that the tokenizer
 * needs. Internal to the text part of core/model. */
#ifndef TR_CORE_MODEL_TOKENIZER_UTF8_H
#define TR_CORE_MODEL_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the character at text [size >= 1]: its length in bytes (1..4) with *code set, or 0 when
 * the bytes are no valid character (overlong, surrogate, above U+10FFFF, cut off). */
size_t tr_utf8_decode(const char *text, size_t size, uint32_t *code);

/* Bytes of the longest valid prefix of text. */
size_t tr_utf8_valid_prefix(const char *text, size_t size);

/* Writes code (a valid scalar value) to out [4], returns the bytes written. */
size_t tr_utf8_encode(uint32_t code, char *out);

/* The White_Space property. */
bool tr_utf8_is_space(uint32_t code);

/* A word character as Rust's regex crate sees it (\w): Alphabetic, Mark, Nd, Pc, Join_Control. */
bool tr_utf8_is_word(uint32_t code);

#endif
