/* fuzz_request.c - bodies of completions and chats, with the bundled model's tokenizer and
 * template. The first byte chooses the endpoint. */
#include "api/request.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CONTEXT 256

static tr_api_model model;

static void open_model(void)
{
    tr_error err = {0};
    tr_tokenizer *tokenizer;
    tr_chat_template *chat_template;
    if (tr_tokenizer_open(&tokenizer, MODEL, &err) != TR_OK ||
        tr_chat_template_open(&chat_template, MODEL, &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    model = (tr_api_model){.name = "m",
                           .tokenizer = tokenizer,
                           .chat_template = chat_template,
                           .context_max = CONTEXT};
    tr_sentinels_find(&model.sentinels, tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (model.name == NULL)
        open_model();
    if (size == 0)
        return 0;
    tr_api_request r;
    tr_api_error err = {0};
    tr_api_kind kind = data[0] % 2 == 0 ? TR_API_COMPLETION : TR_API_CHAT;
    if (!tr_api_request_read(&r, &model, kind, (const char *)data + 1, size - 1, &err)) {
        assert(err.status >= 400);
        assert(err.message[0] != '\0');
        char out[TR_API_ERROR_JSON_MAX];
        tr_json w;
        tr_json_init(&w, out, sizeof(out));
        tr_api_error_write(&w, &err);
        assert(!w.overflow);
        return 0;
    }
    assert(r.tokens_count > 0);
    assert(r.tokens_max > 0);
    assert(r.tokens_count + r.tokens_max <= CONTEXT);
    tr_api_request_free(&r);
    return 0;
}
