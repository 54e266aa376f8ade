/* chat_template.h - renders the chat template of a checkpoint (the Jinja subset that published
 * templates use, strict: an unknown construct is an error with line and column). */
#ifndef TR_CORE_MODEL_CHAT_TEMPLATE_H
#define TR_CORE_MODEL_CHAT_TEMPLATE_H

#include "core/error.h"
#include "core/model/tokenizer.h"

#include <jansson.h>

typedef struct tr_chat_template tr_chat_template;

/* From a model path: chat_template.jinja or tokenizer_config.json's chat_template in a directory,
 * tokenizer.chat_template in a GGUF file. The variables bos_token, eos_token, unk_token and
 * pad_token are taken from the same place. Read-only afterwards, any number of threads may render.
 * errors  TR_E_INVALID with file, line, column, construct; TR_E_NOTSUP when the model has none. */
tr_status tr_chat_template_open(tr_chat_template **out, const char *model_path, tr_error *err);

/* From what a folder holds: the text of chat_template.jinja (NULL: absent) and the object of
 * tokenizer_config.json (NULL: absent, too). folder stands in errors. */
tr_status tr_chat_template_from_files(tr_chat_template **out, const char *folder, const char *jinja,
                                      size_t size, const json_t *config, tr_error *err);

/* From source text, for tests and fuzzing. name stands in errors. */
tr_status tr_chat_template_parse(tr_chat_template **out, const char *name, const char *source,
                                 size_t size, tr_error *err);
void tr_chat_template_close(tr_chat_template *t);

/* The rendered text, and for each byte whether it came from the input (user data) or from the
 * template. The text of a special token counts as that token only where all of it is from the
 * template. */
typedef struct {
    char *text;           /* owns, NUL-terminated */
    unsigned char *input; /* owns, [size]: 1 = from the variables, 0 = from the template */
    size_t size;
} tr_rendered;

/* Renders with the given variables.
 *
 *   variables  JSON object: messages, tools (absent = undefined), add_generation_prompt, and any
 *              template arguments (reasoning_effort, ...). Borrowed.
 *
 * Bounded: at most 1 M evaluation steps, 64 blocks, calls or values inside each other, 16 MiB of
 * output, 256 MiB of memory. *out is to be freed only after success.
 * errors  TR_E_INVALID with line and column; raise_exception's text as it is. */
tr_status tr_chat_template_render(const tr_chat_template *t, const json_t *variables,
                                  tr_rendered *out, tr_error *err);

/* The same at a given time (seconds since 1970), which only strftime_now looks at. */
tr_status tr_chat_template_render_at(const tr_chat_template *t, const json_t *variables,
                                     int64_t now_s, tr_rendered *out, tr_error *err);
void tr_rendered_free(tr_rendered *r);

/* Tokenizes rendered text. Special tokens are recognised in template bytes only; the text between
 * them is tokenized as one run wherever it came from, so that a harmless text gives the ids that it
 * gives as a whole. Appends like tr_tokenizer_encode. */
tr_status tr_rendered_encode(const tr_rendered *r, const tr_tokenizer *tokenizer, int32_t *ids,
                             size_t ids_max, size_t *ids_count, tr_error *err);

#endif
