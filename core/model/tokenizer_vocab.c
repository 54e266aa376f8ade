/* tokenizer_vocab.c - id <-> text <-> bytes.
 *
 * Vocabularies of byte-level tokenizers are written in GPT-2's byte alphabet: printable bytes stand
 * for themselves (as the code point of the same value), the other 68 for U+0100 and up, in order.
 */
#include "core/model/tokenizer_impl.h"

#include "core/model/tokenizer_utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static bool byte_is_printable(unsigned int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

static uint32_t byte_to_letter(unsigned char byte)
{
    if (byte_is_printable(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte <= 0xA0)
        return 0x100u + 0x21u + (byte - 0x7Fu);
    return 0x143; /* 0xAD, the last of the 68 */
}

/* The byte of a letter, -1 outside the alphabet. */
static int letter_to_byte(uint32_t letter)
{
    if (letter < 0x100)
        return byte_is_printable(letter) ? (int)letter : -1;
    if (letter <= 0x120)
        return (int)(letter - 0x100);
    if (letter <= 0x142)
        return (int)(letter - 0x121 + 0x7F);
    return letter == 0x143 ? 0xAD : -1;
}

size_t tr_bytes_to_alphabet(const char *bytes, size_t size, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < size; i++)
        used += tr_utf8_encode(byte_to_letter((unsigned char)bytes[i]), out + used);
    return used;
}

/* Writes what text means to out [size]; -1 when text leaves the alphabet. */
static int64_t alphabet_to_bytes(const char *text, size_t size, char *out)
{
    size_t used = 0;

    for (size_t at = 0; at < size;) {
        uint32_t letter;
        size_t length = tr_utf8_decode(text + at, size - at, &letter);
        int byte = length == 0 ? -1 : letter_to_byte(letter);
        if (byte < 0)
            return -1;
        out[used++] = (char)byte;
        at += length;
    }
    return (int64_t)used;
}

/* Writes text to out with a space for each U+2581, returns the size. */
static size_t blocks_to_spaces(const char *text, size_t size, char *out)
{
    size_t used = 0;

    for (size_t at = 0; at < size;) {
        if (size - at >= 3 && memcmp(text + at, "\u2581", 3) == 0) {
            out[used++] = ' ';
            at += 3;
        } else {
            out[used++] = text[at++];
        }
    }
    return used;
}

/* The byte that "<0x0A>" stands for, -1 when text is not written so. */
static int byte_of_text(const char *text, size_t size)
{
    static const char digits[] = "0123456789ABCDEF";

    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>' || text[3] == '\0' ||
        text[4] == '\0')
        return -1;
    const char *high = strchr(digits, text[3]), *low = strchr(digits, text[4]);
    return high == NULL || low == NULL ? -1 : (int)(16 * (high - digits) + (low - digits));
}

/* Writes what text means to out [size], returns its size; -1 when that is text itself, -2 when it
 * is not written as kind asks. */
static int64_t text_to_bytes(const char *text, size_t size, tr_text_kind kind, char *out)
{
    switch (kind) {
    case TR_TEXT_PLAIN:
        return -1;
    case TR_TEXT_ALPHABET:
        return alphabet_to_bytes(text, size, out);
    case TR_TEXT_BLOCKS:
        return (int64_t)blocks_to_spaces(text, size, out);
    case TR_TEXT_BYTE: {
        int byte = byte_of_text(text, size);
        if (byte < 0)
            return -2;
        out[0] = (char)byte;
        return 1;
    }
    }
    return -2;
}

tr_status tr_vocab_init(tr_vocab *vocab, uint32_t count, const char *where, tr_error *err)
{
    uint32_t slots = 16;

    if (count == 0 || count > TR_TOKENS_MAX)
        return tr_fail(err, TR_E_INVALID, "%s: %u tokens, expected 1 to %u", where, count,
                       TR_TOKENS_MAX);
    while (slots < 2 * count)
        slots *= 2;
    *vocab = (tr_vocab){.tokens = calloc(count, sizeof(*vocab->tokens)),
                        .count = count,
                        .slots = calloc(slots, sizeof(*vocab->slots)),
                        .slots_mask = slots - 1};
    if (vocab->tokens == NULL || vocab->slots == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for %u tokens", where, count);
    return TR_OK;
}

void tr_vocab_free(tr_vocab *vocab)
{
    for (uint32_t id = 0; vocab->tokens != NULL && id < vocab->count; id++)
        free((char *)vocab->tokens[id].text); /* bytes share the block */
    free(vocab->tokens);
    free(vocab->slots);
    *vocab = (tr_vocab){0};
}

/* The slot that holds the text, or the free slot where it would go. At most half of the slots are
 * taken, so the walk ends. */
static uint32_t *vocab_slot(const tr_vocab *vocab, const char *text, size_t size)
{
    uint32_t at = (uint32_t)XXH3_64bits(text, size) & vocab->slots_mask;

    while (vocab->slots[at] != 0) {
        const tr_token *token = &vocab->tokens[vocab->slots[at] - 1];
        if (token->text_size == size && memcmp(token->text, text, size) == 0)
            break;
        at = (at + 1) & vocab->slots_mask;
    }
    return &vocab->slots[at];
}

tr_status tr_vocab_set(tr_vocab *vocab, uint32_t id, const char *text, size_t size,
                       tr_text_kind kind, const char *where, tr_error *err)
{
    assert(id < vocab->count);
    assert(size <= UINT32_MAX / 2);
    if (vocab->tokens[id].text != NULL)
        return tr_fail(err, TR_E_INVALID, "%s: id %u is given twice, as \"%.40s\" and \"%.*s\"",
                       where, id, vocab->tokens[id].text, (int)(size > 40 ? 40 : size), text);

    char *block = malloc(2 * size + 2); /* text, NUL, bytes, NUL */
    if (block == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for token %u", where, id);
    char *bytes = block + size + 1;
    if (size > 0)
        memcpy(block, text, size);
    block[size] = '\0';
    int64_t bytes_size = text_to_bytes(text, size, kind, bytes);
    if (bytes_size == -2) {
        free(block);
        return tr_fail(err, TR_E_INVALID, "%s: byte token %u is \"%.*s\", expected \"<0x00>\"",
                       where, id, (int)(size > 40 ? 40 : size), text);
    }
    if (bytes_size < 0) {
        bytes = block;
        bytes_size = (int64_t)size;
    } else {
        bytes[bytes_size] = '\0';
    }
    vocab->tokens[id] = (tr_token){.text = block,
                                   .bytes = bytes,
                                   .text_size = (uint32_t)size,
                                   .bytes_size = (uint32_t)bytes_size};
    *vocab_slot(vocab, text, size) = id + 1;
    return TR_OK;
}

int32_t tr_vocab_find(const tr_vocab *vocab, const char *text, size_t size)
{
    return (int32_t)*vocab_slot(vocab, text, size) - 1;
}
