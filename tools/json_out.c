#include "tools/json_out.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

json_t *tr_json_out_text(const char *text, size_t size)
{
    json_t *json = json_stringn(text, size);
    if (json != NULL)
        return json;
    char *ascii = malloc(size + 1);
    if (ascii == NULL)
        return NULL;
    for (size_t i = 0; i < size; i++)
        ascii[i] = (unsigned char)text[i] < 0x80 ? text[i] : '?';
    json = json_stringn(ascii, size);
    free(ascii);
    return json;
}

tr_status tr_json_out_print(json_t *document, size_t flags, tr_error *err)
{
    /* What could not be written is noticed when the command ends. */
    bool made = document != NULL && (json_dumpf(document, stdout, flags) == 0 || ferror(stdout));

    json_decref(document);
    if (!made)
        return tr_fail(err, TR_E_NOMEM, "no memory for the result as JSON");
    printf("\n");
    return TR_OK;
}
