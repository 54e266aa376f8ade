/* fuzz_chat_template.c - a template from outside, rendered with variables from outside.
 *
 * Input: the template, a byte 0xFF (which no UTF-8 contains), the variables as a JSON object. What
 * renders must render the same twice. */
#include "core/model/chat_template.h"
#include "core/model/json.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void render(const tr_chat_template *t, const json_t *variables)
{
    tr_rendered first, second;
    tr_error err;

    if (tr_chat_template_render_at(t, variables, 0, &first, &err) != TR_OK)
        return;
    tr_status status = tr_chat_template_render_at(t, variables, 0, &second, &err);
    assert(status == TR_OK);
    assert(first.size == second.size);
    assert(memcmp(first.text, second.text, first.size) == 0);
    assert(memcmp(first.input, second.input, first.size) == 0);
    tr_rendered_free(&first);
    tr_rendered_free(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size == 0 ? NULL : memchr(data, 0xFF, size);
    size_t source_size = end == NULL ? size : (size_t)(end - data);
    tr_chat_template *t;
    json_t *variables = NULL;
    tr_error err;

    if (tr_chat_template_parse(&t, "fuzz", (const char *)data, source_size, &err) != TR_OK)
        return 0;
    if (end == NULL)
        variables = json_object();
    else if (tr_json_parse(&variables, "variables", (const char *)end + 1, size - source_size - 1,
                           &err) != TR_OK)
        variables = NULL;
    if (variables != NULL)
        render(t, variables);
    json_decref(variables);
    tr_chat_template_close(t);
    return 0;
}
