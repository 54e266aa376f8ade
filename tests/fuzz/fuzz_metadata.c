/* fuzz_metadata.c - the metadata of a GGUF file through its family: what is accepted must be a spec
 * that the rest of the program can rely on. */
#include "core/model/family.h"
#include "core/model/role.h"
#include "tests/fuzz/walk_shapes.h"

#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text;
    size_t text_size;
    char architecture[64];
    tr_gguf *g;
    tr_error err;

    if (tr_gguf_parse(&g, "fuzz.gguf", data, size, &err) != TR_OK)
        return 0;
    if (tr_gguf_text(g, "general.architecture", &text, &text_size, &err) == TR_OK) {
        snprintf(architecture, sizeof(architecture), "%.*s", (int)(text_size < 63 ? text_size : 63),
                 text);
        const tr_family *family = tr_family_find(architecture, true);
        tr_draft draft = {.tied = false};
        tr_config config;

        if (family != NULL) {
            tr_config_init_gguf(&config, g, NULL, architecture);
            tr_status status = family->gguf.read(&draft, &config, &err);
            tr_config_teardown(&config);
            draft.spec.layers = draft.layers;
            if (status == TR_OK && tr_spec_check(&draft.spec, "fuzz.gguf", &err) == TR_OK)
                walk_shapes(&draft.spec);
        }
        tr_draft_teardown(&draft);
    }
    tr_gguf_close(g);
    return 0;
}
