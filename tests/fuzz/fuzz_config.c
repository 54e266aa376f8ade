/* fuzz_config.c - config.json through every family: what is accepted must be a spec that the rest
 * of the program can rely on. */
#include "core/model/family.h"
#include "core/model/json.h"
#include "core/model/role.h"
#include "tests/fuzz/walk_shapes.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root;
    tr_error err;

    if (tr_json_parse(&root, "config.json", (const char *)data, size, &err) != TR_OK)
        return 0;
    for (const tr_family *const *f = tr_families; *f != NULL; f++) {
        tr_draft draft = {0};
        tr_config config;

        if ((*f)->hf.read == NULL)
            continue;
        tr_config_init(&config, "config.json", root);
        tr_status status = (*f)->hf.read(&draft, &config, &err);
        tr_config_teardown(&config);
        draft.spec.layers = draft.layers;
        if (status == TR_OK)
            status = tr_draft_derive(&draft, "config.json", &err);
        if (status == TR_OK && tr_spec_check(&draft.spec, "config.json", &err) == TR_OK)
            walk_shapes(&draft.spec);
        tr_draft_teardown(&draft);
    }
    json_decref(root);
    return 0;
}
