#include "kernels/kernels.h"

#include "kernels/ref/ref.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

extern const tr_kernels tr_cpu_portable_kernels;
#if defined(__x86_64__)
extern const tr_kernels tr_cpu_avx512_kernels;
extern const tr_kernels tr_cpu_avx2_kernels;
#elif defined(__aarch64__)
extern const tr_kernels tr_cpu_neon_kernels;
#endif

static bool cpu_has_portable(void)
{
    return true;
}

#if defined(__x86_64__)
/* __builtin_cpu_supports also looks at whether the system saves the registers. */
static bool cpu_has_avx2(void)
{
    unsigned a, b, c, d;
    bool f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;

    __builtin_cpu_init();
    return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

/* Best first. ref is never chosen by itself. */
static const struct {
    const tr_kernels *kernels;
    bool (*available)(void);
} cpu_list[] = {
#if defined(__x86_64__)
    {&tr_cpu_avx512_kernels, cpu_has_avx512},
    {&tr_cpu_avx2_kernels, cpu_has_avx2},
#elif defined(__aarch64__)
    {&tr_cpu_neon_kernels, cpu_has_portable}, /* every aarch64 has it */
#endif
    {&tr_cpu_portable_kernels, cpu_has_portable},
};
#define CPU_LIST_COUNT (sizeof(cpu_list) / sizeof(cpu_list[0]))

const tr_kernels *tr_kernels_best(void)
{
    size_t i = 0;

    while (!cpu_list[i].available())
        i++; /* the last one is always there */
    return cpu_list[i].kernels;
}

tr_status tr_kernels_find(const tr_kernels **out, const char *name, tr_error *err)
{
    if (strcmp(name, "cpu") == 0) {
        *out = tr_kernels_best();
        return TR_OK;
    }
    if (strcmp(name, tr_ref_kernels.name) == 0) {
        *out = &tr_ref_kernels;
        return TR_OK;
    }
    for (size_t i = 0; i < CPU_LIST_COUNT; i++) {
        if (strcmp(name, cpu_list[i].kernels->name) != 0)
            continue;
        if (!cpu_list[i].available())
            return tr_fail(err, TR_E_NOTSUP,
                           "kernels \"%s\": this processor lacks the instruction set", name);
        *out = cpu_list[i].kernels;
        return TR_OK;
    }
    return tr_fail(err, TR_E_NOTSUP,
                   "kernels \"%s\": not in this build, which has cpu, ref, %s and %s", name,
                   cpu_list[0].kernels->name, cpu_list[CPU_LIST_COUNT - 1].kernels->name);
}

const char *tr_kernel_name(uint32_t number)
{
    static const char *const names[] = {
#define X(name) #name,
        TR_KERNEL_MAP(X)
#undef X
    };
    return number < TR_KERNELS_COUNT ? names[number] : "?";
}
