/* tokenizer_utf8.c - UTF-8 decoding, two character classes, and the stream that turns tokens into
 * whole characters. */
#include "core/model/tokenizer_utf8.h"

#include "core/model/tokenizer.h"

#include <assert.h>
#include <string.h>
#include <utf8proc.h>

/* Length that a lead byte promises, 0 for a byte that cannot lead. */
static size_t utf8_promised(unsigned char lead)
{
    if (lead < 0x80)
        return 1;
    if (lead >= 0xC2 && lead <= 0xDF)
        return 2;
    if (lead >= 0xE0 && lead <= 0xEF)
        return 3;
    if (lead >= 0xF0 && lead <= 0xF4)
        return 4;
    return 0;
}

/* The second byte decides overlong forms, surrogates and the end of Unicode. */
static bool utf8_second_fits(unsigned char lead, unsigned char second)
{
    unsigned char low = 0x80, high = 0xBF;

    if (lead == 0xE0)
        low = 0xA0;
    else if (lead == 0xED)
        high = 0x9F;
    else if (lead == 0xF0)
        low = 0x90;
    else if (lead == 0xF4)
        high = 0x8F;
    return second >= low && second <= high;
}

/* How many of the bytes could still become the promised character: all of them, or the maximal
 * prefix that Unicode says to replace by one U+FFFD (at least 1). */
static size_t utf8_good_bytes(const unsigned char *bytes, size_t size, size_t promised)
{
    size_t good = 1;

    if (promised >= 2 && size >= 2) {
        if (!utf8_second_fits(bytes[0], bytes[1]))
            return good;
        for (good = 2; good < promised && good < size; good++)
            if ((bytes[good] & 0xC0) != 0x80)
                break;
    }
    return good;
}

size_t tr_utf8_decode(const char *text, size_t size, uint32_t *code)
{
    const unsigned char *bytes = (const unsigned char *)text;
    assert(size >= 1);

    size_t promised = utf8_promised(bytes[0]);
    if (promised == 0 || utf8_good_bytes(bytes, size, promised) != promised)
        return 0;
    uint32_t value = promised == 1 ? bytes[0] : bytes[0] & (0xFFu >> (promised + 1));
    for (size_t i = 1; i < promised; i++)
        value = value << 6 | (bytes[i] & 0x3F);
    *code = value;
    return promised;
}

size_t tr_utf8_valid_prefix(const char *text, size_t size)
{
    size_t at = 0;

    while (at < size) {
        uint32_t code;
        if ((unsigned char)text[at] < 0x80) {
            at++;
            continue;
        }
        size_t length = tr_utf8_decode(text + at, size - at, &code);
        if (length == 0)
            break;
        at += length;
    }
    return at;
}

size_t tr_utf8_encode(uint32_t code, char *out)
{
    assert(code <= 0x10FFFF);
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3F));
    out[2] = (char)(0x80 | (code >> 6 & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

bool tr_utf8_is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool tr_utf8_is_word(uint32_t code)
{
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        break;
    }
    /* Other_Alphabetic outside the categories above (circled and squared letters), and the two
     * join controls. */
    return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
           (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189) ||
           code == 0x200C || code == 0x200D;
}

static size_t utf8_put_replacement(char *out, size_t at)
{
    memcpy(out + at, "\xEF\xBF\xBD", 3);
    return at + 3;
}

size_t tr_utf8_stream_push(tr_utf8_stream *s, const char *bytes, size_t size, bool final, char *out,
                           size_t out_max)
{
    size_t used = 0;
    assert(s->held_size < sizeof(s->held));
    assert(out_max >= 3 * size + 12);

    for (size_t i = 0; i < size; i++) {
        s->held[s->held_size++] = (unsigned char)bytes[i];

        /* A pass per character or bad prefix. One byte is left over at most once: the byte that
         * ended a bad prefix starts anew. */
        while (s->held_size > 0) {
            size_t promised = utf8_promised(s->held[0]);
            size_t good = promised == 0 ? 0 : utf8_good_bytes(s->held, s->held_size, promised);
            size_t taken;

            if (promised != 0 && good == s->held_size && good < promised)
                break; /* may still be completed */
            if (promised != 0 && good == promised) {
                memcpy(out + used, s->held, good);
                used += good;
                taken = good;
            } else {
                used = utf8_put_replacement(out, used);
                taken = good == 0 ? 1 : good;
            }
            s->held_size -= (uint32_t)taken;
            memmove(s->held, s->held + taken, s->held_size);
        }
    }
    if (final && s->held_size > 0) {
        used = utf8_put_replacement(out, used);
        s->held_size = 0;
    }
    assert(used <= out_max);
    return used;
}
