/* fuzz_tokenizer.c - a tokenizer from outside, then a text through it.
 *
 * Input: a tokenizer.json (it begins with "{"), a GGUF file, or else a tiktoken.model; behind the
 * first and the last a byte 0xFF (which neither contains) and the text. A tokenizer that opens must
 * give ids that exist, the same ones twice, no more than it promises, and as many as it says when
 * there is no room. */
#include "core/model/tokenizer_impl.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define IDS_MAX 4096

static void encode(const tr_tokenizer *t, const char *text, size_t size, bool specials)
{
    static int32_t ids[IDS_MAX], again[IDS_MAX];
    size_t count = 0, count_again = 0, needed = 0;
    tr_error err;

    tr_status status = tr_tokenizer_encode(t, text, size, specials, ids, IDS_MAX, &count, &err);
    if (status != TR_OK)
        return;
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t bytes_size;
        tr_tokenizer_token_bytes(t, ids[i], &bytes, &bytes_size);
        assert(ids[i] >= 0);
        assert((uint32_t)ids[i] < tr_tokenizer_vocab_size(t));
        assert(strlen(bytes) <= bytes_size);
    }
    status = tr_tokenizer_encode(t, text, size, specials, again, IDS_MAX, &count_again, &err);
    assert(status == TR_OK);
    assert(count <= tr_tokenizer_ids_max(t, size));
    assert(count_again == count);
    assert(memcmp(ids, again, count * sizeof(ids[0])) == 0);
    status = tr_tokenizer_encode(t, text, size, specials, again, 0, &needed, &err);
    assert(status == (count == 0 ? TR_OK : TR_E_NOMEM));
    assert(needed == count);
}

static tr_status open_any(tr_tokenizer **t, const uint8_t *data, size_t size, tr_error *err)
{
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
        tr_gguf *gguf;
        tr_status status = tr_gguf_parse(&gguf, "fuzz", data, size, err);
        if (status != TR_OK)
            return status;
        status = tr_tokenizer_from_gguf(t, gguf, err);
        tr_gguf_close(gguf);
        return status;
    }
    if (size > 0 && data[0] == '{')
        return tr_tokenizer_from_json(t, "fuzz", (const char *)data, size, err);
    json_t *config = json_pack("{s:s, s:{s:{s:s, s:b}}}", "tokenizer_class", "TikTokenTokenizer",
                               "added_tokens_decoder", "300", "content", "<|x|>", "special", 1);
    tr_status status = tr_tokenizer_from_tiktoken(t, (const char *)data, size, config, err);
    json_decref(config);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool gguf = size >= 4 && memcmp(data, "GGUF", 4) == 0;
    const uint8_t *end = size == 0 || gguf ? NULL : memchr(data, 0xFF, size);
    size_t file_size = end == NULL ? size : (size_t)(end - data);
    tr_tokenizer *t;
    tr_error err;

    if (open_any(&t, data, file_size, &err) != TR_OK)
        return 0;
    const char *text = end == NULL ? "the \xC3\xA9 <|x|> 12\xFF" : (const char *)end + 1;
    size_t text_size = end == NULL ? strlen(text) : size - file_size - 1;
    encode(t, text, text_size, true);
    encode(t, text, text_size, false);
    tr_tokenizer_close(t);
    return 0;
}
