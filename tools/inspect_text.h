/* inspect_text.h - whether a model's tokenizer and chat template can be used. */
#ifndef TR_TOOLS_INSPECT_TEXT_H
#define TR_TOOLS_INSPECT_TEXT_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    uint32_t tokens; /* 0: the tokenizer cannot be used, tokenizer_trouble says why */
    char bos[64];    /* text of the token before a text that stands alone; "": there is none */
    tr_error tokenizer_trouble;
    bool has_template; /* false: template_trouble says why */
    tr_error template_trouble;
} tr_inspect_text;

/* Opens both. A model without them can still be inspected and run on token ids. */
void tr_inspect_text_read(tr_inspect_text *out, const char *model_path);

#endif
