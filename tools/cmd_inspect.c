/* cmd_inspect.c - what a checkpoint is, before anybody loads it. */
#include "core/budget.h"
#include "tools/cli.h"
#include "tools/inspect_report.h"
#include "tools/inspect_tensors.h"
#include "tools/inspect_text.h"
#include "tools/inspect_verify.h"
#include "tools/inspect_words.h"
#include "tools/json_out.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- for people -- */

static const char *inspect_count_text(char *text, size_t size, uint64_t count)
{
    if (count >= 1000000000)
        snprintf(text, size, "%.2f G", (double)count / 1e9);
    else if (count >= 1000000)
        snprintf(text, size, "%.2f M", (double)count / 1e6);
    else
        snprintf(text, size, "%" PRIu64, count);
    return text;
}

/* Each kind of mixer and of feed-forward: its short name, and the words for it. */
static void inspect_print_kinds(const tr_model_spec *spec, tr_inspect_half half)
{
    char name[TR_INSPECT_SHORT_SIZE], words[TR_INSPECT_WORDS_SIZE];

    for (uint32_t i = 0; i < spec->layers_count; i++) {
        if (tr_inspect_kind(spec, i, half) != i)
            continue;
        tr_inspect_short(name, sizeof(name), spec, i, half);
        tr_inspect_words(words, sizeof(words), &spec->layers[i], half);
        printf("    |   %-16s %s\n", name, words);
    }
}

static void inspect_print_ngrams(const tr_model_spec *spec)
{
    char label[32], words[TR_INSPECT_WORDS_SIZE];

    for (uint32_t i = 0; i < spec->layers_count; i++) {
        if (spec->layers[i].ngram.size == 0)
            continue;
        snprintf(label, sizeof(label), "n-grams, layer %u", i);
        tr_inspect_ngram(words, sizeof(words), &spec->layers[i].ngram);
        printf("    |   %-16s %s\n", label, words);
    }
}

static tr_status inspect_print_drawing(const tr_model *model, tr_error *err)
{
    const tr_model_spec *spec = tr_model_get_spec(model);
    tr_inspect_span *spans = calloc(spec->layers_count, sizeof(*spans));
    char label[32], first[TR_INSPECT_WORDS_SIZE], last[TR_INSPECT_WORDS_SIZE];

    if (spans == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory to draw it", tr_model_path(model));
    uint32_t count = tr_inspect_fold(spans, spec);
    tr_inspect_residual(first, sizeof(first), last, sizeof(last), spec);
    printf("\n    %u tokens -> %s\n    |\n", spec->vocab_size, first);
    for (uint32_t i = 0; i < count; i++) {
        if (spans[i].last > spans[i].first)
            snprintf(label, sizeof(label), "layers %u-%u", spans[i].first, spans[i].last);
        else
            snprintf(label, sizeof(label), "layer %u", spans[i].first);
        printf("    |   %-16s %s\n", label, spans[i].text);
    }
    printf("    |\n");
    inspect_print_kinds(spec, TR_INSPECT_MIXER);
    inspect_print_kinds(spec, TR_INSPECT_CHANNEL);
    inspect_print_ngrams(spec);
    printf("    |\n    %s -> output matrix%s -> %u logits\n\n", last,
           tr_model_is_tied(model) ? " (the embedding)" : "", spec->vocab_size);
    free(spans);
    return TR_OK;
}

static void inspect_print_row(const char *name, const tr_inspect_row *row)
{
    char bytes[3][32], weights[32];

    printf("  %-20s %12s %12s %12s %12s\n", name,
           inspect_count_text(weights, sizeof(weights), row->weights),
           tr_bytes_text(bytes[0], sizeof(bytes[0]), row->bytes),
           tr_bytes_text(bytes[1], sizeof(bytes[1]), row->node_bytes[0]),
           tr_bytes_text(bytes[2], sizeof(bytes[2]), row->node_bytes[1]));
}

static void inspect_print_skipped(const tr_inspect_report *report)
{
    char bytes[32];

    if (report->skipped_count == 0)
        printf("\n  skipped: nothing\n");
    else
        printf("\n  %-20s %12s %12s\n", "skipped", "tensors", "bytes");
    for (uint32_t i = 0; i < report->skipped_reasons; i++) {
        const tr_inspect_skipped *row = &report->skipped[i];

        printf("  %-20s %12" PRIu64 " %12s   %s\n", "", row->count,
               tr_bytes_text(bytes, sizeof(bytes), row->bytes), row->reason);
        printf("  %-20s %12s %12s   (%s%s)\n", "", "", "", row->example,
               row->count > 1 ? ", ..." : "");
    }
}

/* Tokenizer and chat template: what serving needs beside the weights. */
static void inspect_print_text(const tr_inspect_text *text)
{
    if (text->tokens > 0)
        printf("\n  tokenizer: %u tokens%s%s\n", text->tokens, text->bos[0] != '\0' ? ", BOS " : "",
               text->bos);
    else
        printf("\n  no tokenizer: %s\n", text->tokenizer_trouble.text);
    if (text->has_template)
        printf("  chat template: opens\n");
    else
        printf("  no chat template: %s\n", text->template_trouble.text);
}

/* hash is NULL when nothing was verified, tensors when they are not to be listed. */
static tr_status inspect_print(const tr_model *model, const tr_inspect_report *report,
                               const tr_inspect_text *text, const char *hash,
                               const tr_inspect_tensors *tensors, tr_error *err)
{
    const tr_model_spec *spec = tr_model_get_spec(model);
    char bytes[32], weights[32];

    printf("%s: %s, %u layers, context %u\n", tr_model_path(model), spec->architecture,
           spec->layers_count, spec->context_max);
    printf("%u file%s, %u tensors, %s weights in %s\n", tr_model_files_count(model),
           tr_model_files_count(model) > 1 ? "s" : "", tr_model_tensors_count(model),
           inspect_count_text(weights, sizeof(weights), report->total.weights),
           tr_bytes_text(bytes, sizeof(bytes), report->total.bytes));
    tr_status status = inspect_print_drawing(model, err);
    if (status != TR_OK)
        return status;

    printf("  %-20s %12s %12s %12s %12s\n", "part", "weights", "bytes", "node 1 of 2",
           "node 2 of 2");
    for (int i = 0; i < TR_INSPECT_PARTS; i++)
        if (report->parts[i].matrices > 0)
            inspect_print_row(tr_inspect_part_name((tr_inspect_part)i), &report->parts[i]);
    inspect_print_row("sum", &report->total);
    if (report->parts[TR_INSPECT_TABLE].bytes > 0)
        inspect_print_row("  in files only", &report->parts[TR_INSPECT_TABLE]);
    printf("\n  %-20s %12s %12s %12s\n", "format", "weights", "bytes", "tensors");
    for (int i = 0; i < TR_FORMATS_COUNT; i++) {
        const tr_inspect_row *row = &report->formats[i];

        if (row->matrices > 0)
            printf("  %-20s %12s %12s %12" PRIu64 "\n", tr_format_name((tr_format)i),
                   inspect_count_text(weights, sizeof(weights), row->weights),
                   tr_bytes_text(bytes, sizeof(bytes), row->bytes), row->matrices);
    }
    inspect_print_skipped(report);
    inspect_print_text(text);
    if (hash != NULL)
        printf("\n  verified: all values are finite, all block scales in range; XXH3-128 %s\n",
               hash);
    if (tensors != NULL)
        tr_inspect_tensors_print(tensors);
    return TR_OK;
}

/* -- for programs -- */

/* "0, 4" or "1-3, 5-7": the layers of the kind that layer first is of. */
static json_t *inspect_layers_json(const tr_model_spec *spec, uint32_t first, tr_inspect_half half)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    for (uint32_t i = first; out != NULL && i < spec->layers_count; i++) {
        uint32_t last = i;

        if (tr_inspect_kind(spec, i, half) != first)
            continue;
        while (last + 1 < spec->layers_count && tr_inspect_kind(spec, last + 1, half) == first)
            last++;
        fprintf(out, "%s%u", i > first ? ", " : "", i);
        if (last > i)
            fprintf(out, "-%u", last);
        i = last;
    }
    if (out != NULL)
        fclose(out);
    json_t *list = text == NULL ? NULL : json_string(text);
    free(text);
    return list;
}

static json_t *inspect_text_of(const char *text)
{
    return tr_json_out_text(text, strlen(text));
}

static void inspect_collect_kinds(json_t *list, const tr_model_spec *spec, tr_inspect_half half)
{
    char name[TR_INSPECT_SHORT_SIZE], words[TR_INSPECT_WORDS_SIZE];

    for (uint32_t i = 0; i < spec->layers_count; i++) {
        if (tr_inspect_kind(spec, i, half) != i)
            continue;
        tr_inspect_short(name, sizeof(name), spec, i, half);
        tr_inspect_words(words, sizeof(words), &spec->layers[i], half);
        (void)json_array_append_new(list, json_pack("{s:o*, s:s, s:s}", "layers",
                                                    inspect_layers_json(spec, i, half), "name",
                                                    name, "is", words));
    }
}

static void inspect_collect_ngrams(json_t *list, const tr_model_spec *spec)
{
    char layer[16], words[TR_INSPECT_WORDS_SIZE];

    for (uint32_t i = 0; i < spec->layers_count; i++) {
        if (spec->layers[i].ngram.size == 0)
            continue;
        snprintf(layer, sizeof(layer), "%u", i);
        tr_inspect_ngram(words, sizeof(words), &spec->layers[i].ngram);
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:s}", "layers", layer, "name", "n-grams", "is", words));
    }
}

static json_t *inspect_schedule_json(const tr_model_spec *spec)
{
    tr_inspect_span *spans = calloc(spec->layers_count, sizeof(*spans));
    json_t *list = json_array();

    if (spans == NULL)
        return list;
    uint32_t count = tr_inspect_fold(spans, spec);
    for (uint32_t i = 0; i < count; i++)
        (void)json_array_append_new(list,
                                    json_pack("{s:i, s:i, s:s}", "first", (int)spans[i].first,
                                              "last", (int)spans[i].last, "is", spans[i].text));
    free(spans);
    return list;
}

static json_t *inspect_skipped_json(const tr_inspect_report *report)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < report->skipped_reasons; i++) {
        const tr_inspect_skipped *row = &report->skipped[i];

        (void)json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:o}", "reason", row->reason,
                                                    "tensors", (json_int_t)row->count, "bytes",
                                                    (json_int_t)row->bytes, "example",
                                                    inspect_text_of(row->example)));
    }
    return json_pack("{s:I, s:I, s:o}", "tensors", (json_int_t)report->skipped_count, "bytes",
                     (json_int_t)report->skipped_bytes, "reasons", list);
}

static json_t *inspect_row_json(const char *name, const tr_inspect_row *row, bool nodes)
{
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:I}", "name", name, "weights", (json_int_t)row->weights,
                  "bytes", (json_int_t)row->bytes, "tensors", (json_int_t)row->matrices);

    if (nodes)
        (void)json_object_set_new(
            object, "node_bytes",
            json_pack("[I, I]", (json_int_t)row->node_bytes[0], (json_int_t)row->node_bytes[1]));
    return object;
}

static json_t *inspect_text_json(const tr_inspect_text *text)
{
    json_t *tokenizer =
        text->tokens > 0
            ? json_pack("{s:i, s:o*}", "tokens", (int)text->tokens, "bos",
                        text->bos[0] != '\0' ? inspect_text_of(text->bos) : NULL)
            : json_pack("{s:o}", "error", inspect_text_of(text->tokenizer_trouble.text));
    json_t *template = text->has_template ? json_object()
                                          : json_pack("{s:o}", "error",
                                                      inspect_text_of(text->template_trouble.text));

    return json_pack("{s:o, s:o}", "tokenizer", tokenizer, "chat_template", template);
}

static tr_status inspect_print_json(const tr_model *model, const tr_inspect_report *report,
                                    const tr_inspect_text *text, const char *hash,
                                    const tr_inspect_tensors *tensors, tr_error *err)
{
    const tr_model_spec *spec = tr_model_get_spec(model);
    json_t *layers = json_array(), *parts = json_array(), *formats = json_array();
    char identity[24];

    inspect_collect_kinds(layers, spec, TR_INSPECT_MIXER);
    inspect_collect_kinds(layers, spec, TR_INSPECT_CHANNEL);
    inspect_collect_ngrams(layers, spec);
    for (int i = 0; i < TR_INSPECT_PARTS; i++)
        if (report->parts[i].matrices > 0)
            (void)json_array_append_new(parts,
                                        inspect_row_json(tr_inspect_part_name((tr_inspect_part)i),
                                                         &report->parts[i], true));
    for (int i = 0; i < TR_FORMATS_COUNT; i++)
        if (report->formats[i].matrices > 0)
            (void)json_array_append_new(formats, inspect_row_json(tr_format_name((tr_format)i),
                                                                  &report->formats[i], false));
    snprintf(identity, sizeof(identity), "%016" PRIx64, tr_model_identity(model));
    json_t *root = json_pack(
        "{s:o, s:o, s:s, s:i, s:i, s:I, s:i, s:i, s:i, s:i, s:b, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:s*}",
        "model", inspect_text_of(tr_model_path(model)), "architecture",
        inspect_text_of(spec->architecture), "identity", identity, "files",
        (int)tr_model_files_count(model), "tensors", (int)tr_model_tensors_count(model),
        "tensor_bytes", (json_int_t)report->tensor_bytes, "vocabulary", (int)spec->vocab_size,
        "hidden", (int)spec->hidden_size, "layers_count", (int)spec->layers_count, "context",
        (int)spec->context_max, "tied", (int)tr_model_is_tied(model), "schedule",
        inspect_schedule_json(spec), "layers", layers, "parts", parts, "formats", formats, "total",
        inspect_row_json("sum", &report->total, true), "skipped", inspect_skipped_json(report),
        "xxh3_128", hash);
    if (root == NULL)
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for its description", tr_model_path(model));
    json_object_update_new(root, inspect_text_json(text));
    if (tensors != NULL &&
        json_object_set_new(root, "tensor_list", tr_inspect_tensors_json(tensors)) != 0) {
        json_decref(root);
        return tr_fail(err, TR_E_NOMEM, "%s: no memory for a list of its tensors",
                       tr_model_path(model));
    }
    return tr_json_out_print(root, JSON_INDENT(1), err);
}

static int inspect_run(const tr_cli_args *args)
{
    bool verify = tr_cli_has(args, "verify");
    const char *path = tr_cli_positional(args, 0);
    tr_model *model = NULL;
    tr_error err = {0};
    tr_inspect_report report;
    tr_inspect_text text;
    tr_inspect_tensors *tensors = NULL;
    char digest[TR_INSPECT_HASH_SIZE];
    const char *hash = verify ? digest : NULL;

    tr_status status =
        verify ? tr_model_open(&model, path, &err) : tr_model_open_headers(&model, path, &err);
    if (status == TR_OK)
        status = tr_inspect_make(&report, model, &err);
    if (status == TR_OK && verify)
        status = tr_inspect_verify(digest, model, &err);
    if (status == TR_OK && tr_cli_has(args, "tensors"))
        status = tr_inspect_tensors_make(&tensors, model, &err);
    if (status == TR_OK) {
        tr_inspect_text_read(&text, path);
        status = tr_cli_has(args, "json")
                     ? inspect_print_json(model, &report, &text, hash, tensors, &err)
                     : inspect_print(model, &report, &text, hash, tensors, &err);
    }
    tr_inspect_tensors_free(tensors);
    tr_model_close(model);
    return status == TR_OK ? 0 : tr_cli_fail(&err);
}

static const tr_cli_option inspect_options[] = {
    {"json", 'j', NULL, "print one JSON object instead of text"},
    {"tensors", 0, NULL, "list every tensor: type, shape, bytes, format and what it is for"},
    {"verify", 0, NULL, "read every byte: values and scales in range, and a hash of all tensors"},
    {NULL, 0, NULL, NULL},
};

const tr_command tr_cmd_inspect = {
    .name = "inspect",
    .summary = "show what a checkpoint is: architecture, formats, bytes per part and node",
    .usage = "MODEL",
    .text =
        "MODEL is a directory in Hugging Face layout or a GGUF file (the first of a split\n"
        "one). Headers and settings are checked as if the model were to be loaded, so a\n"
        "checkpoint that cannot be served is refused here, within seconds, with the reason.\n"
        "The columns of two nodes show the default placement: attention, experts, shared\n"
        "parts and the output matrix divided, the rest on both. \"MoE 320/8+1\" is 320 experts\n"
        "of which 8 are chosen, and a shared one. The hash of --verify does not depend on how\n"
        "tensors are cut into files. In the list of --tensors, \"for NVFP4\" are scales of such\n"
        "a weight; a tensor that is skipped has the reason behind its name.",
    .example = "troupe inspect models/tiny-solar-nvfp4 --tensors",
    .options = inspect_options,
    .positionals_min = 1,
    .positionals_max = 1,
    .run = inspect_run,
};
