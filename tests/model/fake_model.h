/* fake_model.h - writes small checkpoints into a temporary folder, right ones and wrong ones.
 *
 * A fake is a list of tensors and a config; tests change either before it is written. */
#ifndef TR_TESTS_MODEL_FAKE_MODEL_H
#define TR_TESTS_MODEL_FAKE_MODEL_H

#include <jansson.h>
#include <stdint.h>

#define FAKE_TENSORS_MAX 160
#define FAKE_DIMS_MAX    4

typedef struct {
    char name[96];
    char dtype[16];
    uint32_t bytes_per_element; /* of dtype */
    uint64_t dims[FAKE_DIMS_MAX];
    uint32_t dims_count;
    uint8_t fill[4]; /* repeated */
} fake_tensor;

typedef struct {
    char folder[64];
    json_t *config; /* owns */
    fake_tensor tensors[FAKE_TENSORS_MAX];
    uint32_t count;
} fake_model;

/* A solar_open2 model: hidden 64, vocabulary 128, layer 0 softmax attention (4 heads of 16, 2 key
 * heads), layer 1 KDA (4 heads of 16), 4 experts of 32, top 2, a shared expert of 32; BF16. */
void fake_solar(fake_model *f);

/* A llama model: hidden 64, vocabulary 128, 2 layers, 4 heads of 16, 2 key heads, width 128; BF16.
 */
void fake_llama(fake_model *f);

/* A qwen3_5_moe model: hidden 64, vocabulary 128, layer 0 gated delta rule (2 key heads, 4 value
 * heads of 16), layer 1 attention (4 heads of 16, 2 key heads), 2 experts of 32; BF16. */
void fake_qwen(fake_model *f);

/* The same checkpoint within a model that also sees: settings in text_config, tensors under
 * "model.language_model.", one tensor of a vision tower and one of a drafting layer. */
void fake_wrap(fake_model *f);

/* The tensor of this name; fails the test when there is none. */
fake_tensor *fake_find(fake_model *f, const char *name);
fake_tensor *fake_add(fake_model *f, const char *name, const char *dtype, uint32_t dims_count,
                      uint64_t d0, uint64_t d1, uint64_t d2);
void fake_remove(fake_model *f, const char *name);

/* Replaces the BF16 matrix `stem`.weight [N, K] by NVFP4: compressed-tensors with the matrix scale
 * 4 stored, or ModelOpt with 0.25, which is the same. */
void fake_quantize(fake_model *f, const char *stem, int modelopt);

/* Sets a key of the config to JSON text ("null", "true", "[1, 2]"). */
void fake_set(fake_model *f, const char *key, const char *json);

/* Writes config.json and model.safetensors; may be called again after changes. */
void fake_write(fake_model *f);

/* Writes the tensors from first on, count of them, as one safetensors file of the folder. */
void fake_write_tensors(fake_model *f, const char *file, uint32_t first, uint32_t count);

/* Writes text as a file of the folder. */
void fake_write_text(fake_model *f, const char *file, const char *text);

/* Removes the folder and what is in it. */
void fake_close(fake_model *f);

#endif
