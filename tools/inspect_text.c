#include "tools/inspect_text.h"

#include "core/model/chat_template.h"
#include "core/model/tokenizer.h"

#include <stdio.h>

void tr_inspect_text_read(tr_inspect_text *out, const char *model_path)
{
    tr_tokenizer *tokenizer = NULL;
    tr_chat_template *template = NULL;
    const char *bytes;
    size_t size;

    *out = (tr_inspect_text){0};
    if (tr_tokenizer_open(&tokenizer, model_path, &out->tokenizer_trouble) == TR_OK) {
        out->tokens = tr_tokenizer_vocab_size(tokenizer);
        tr_tokenizer_token_bytes(tokenizer, tr_tokenizer_bos(tokenizer), &bytes, &size);
        snprintf(out->bos, sizeof(out->bos), "%.*s", (int)(size < 63 ? size : 63), bytes);
        tr_tokenizer_close(tokenizer);
    }
    if (tr_chat_template_open(&template, model_path, &out->template_trouble) == TR_OK) {
        out->has_template = true;
        tr_chat_template_close(template);
    }
}
