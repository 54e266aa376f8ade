/* jinja_arithmetic.c - + - * / // % ** as Python computes them, on 64-bit integers: what does not
 * fit is an error, not another number. */
#include "core/model/jinja_eval.h"

#include <math.h>
#include <string.h>

static const char *const symbols[] = {
    [TJ_OP_ADD] = "+",    [TJ_OP_SUBTRACT] = "-",      [TJ_OP_MULTIPLY] = "*",
    [TJ_OP_DIVIDE] = "/", [TJ_OP_FLOOR_DIVIDE] = "//", [TJ_OP_MODULO] = "%",
    [TJ_OP_POWER] = "**"};

static bool fail_range(tj_run *run)
{
    return tj_fail(run, "a number beyond 64 bits");
}

static bool integer_power(tj_run *run, int64_t base, int64_t exponent, tj_value *out)
{
    int64_t result = 1;

    if (exponent < 0) {
        if (base == 0)
            return tj_fail(run, "division by zero");
        *out = tj_float(pow((double)base, (double)exponent));
        return true;
    }
    /* Beyond 63 doublings only 0, 1 and -1 stay within 64 bits. */
    if (exponent > 64 && base != 0 && base != 1 && base != -1)
        return fail_range(run);
    if (base == -1)
        exponent &= 1;
    for (int64_t i = 0; i < exponent && (base < 0 || base > 1 || i == 0); i++)
        if (__builtin_mul_overflow(result, base, &result))
            return fail_range(run);
    *out = tj_int(result);
    return true;
}

static bool integers(tj_run *run, tj_op op, int64_t a, int64_t b, tj_value *out)
{
    int64_t result = 0;
    bool overflow = false;

    switch (op) {
    case TJ_OP_ADD:
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case TJ_OP_SUBTRACT:
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case TJ_OP_MULTIPLY:
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case TJ_OP_POWER:
        return integer_power(run, a, b, out);
    default:
        if (b == 0)
            return tj_fail(run, "division by zero");
        if (op == TJ_OP_DIVIDE) {
            *out = tj_float((double)a / (double)b);
            return true;
        }
        if (b == -1) { /* INT64_MIN / -1 overflows */
            overflow = op == TJ_OP_FLOOR_DIVIDE && __builtin_sub_overflow(0, a, &result);
        } else { /* rounded down, and a remainder with the sign of b */
            int64_t quotient = a / b, remainder = a % b;
            bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
            result = op == TJ_OP_FLOOR_DIVIDE ? quotient - adjust : remainder + (adjust ? b : 0);
        }
        break;
    }
    if (overflow)
        return fail_range(run);
    *out = tj_int(result);
    return true;
}

static bool reals(tj_run *run, tj_op op, double a, double b, tj_value *out)
{
    double result = 0;

    switch (op) {
    case TJ_OP_ADD:
        result = a + b;
        break;
    case TJ_OP_SUBTRACT:
        result = a - b;
        break;
    case TJ_OP_MULTIPLY:
        result = a * b;
        break;
    case TJ_OP_POWER:
        result = pow(a, b);
        break;
    default:
        if (b == 0)
            return tj_fail(run, "division by zero");
        if (op == TJ_OP_DIVIDE) {
            result = a / b;
        } else {
            double remainder = fmod(a, b);
            if (remainder != 0 && (remainder < 0) != (b < 0))
                remainder += b;
            result = op == TJ_OP_MODULO ? remainder : floor((a - remainder) / b + 0.5);
        }
        break;
    }
    if (isnan(result) && !isnan(a) && !isnan(b))
        return tj_fail(run, "%s has no real result", symbols[op]);
    *out = tj_float(result);
    return true;
}

static bool add_sequences(tj_run *run, tj_value a, tj_value b, tj_value *out)
{
    const tj_list *x = a.as.list, *y = b.as.list;

    if (!tj_list_make(run, (tj_kind)a.kind, x->count + y->count, out))
        return false;
    for (size_t i = 0; i < x->count; i++)
        if (!tj_list_push(run, out->as.list, x->items[i]))
            return false;
    for (size_t i = 0; i < y->count; i++)
        if (!tj_list_push(run, out->as.list, y->items[i]))
            return false;
    out->input = a.input || b.input;
    return true;
}

static bool repeat(tj_run *run, tj_value v, int64_t times, tj_value *out)
{
    tj_builder b = {0};

    if (v.kind == TJ_STRING) {
        for (int64_t i = 0; i < times && v.as.string->size > 0; i++)
            if (!tj_charge(run, 1) || !tj_put_string(run, &b, v.as.string))
                return false;
        return tj_built(run, &b, out);
    }
    if (!tj_list_make(run, (tj_kind)v.kind, 0, out))
        return false;
    out->input = v.input;
    for (int64_t i = 0; i < times && v.as.list->count > 0; i++)
        for (size_t k = 0; k < v.as.list->count; k++)
            if (!tj_list_push(run, out->as.list, v.as.list->items[k]))
                return false;
    return true;
}

static bool is_integral(tj_value v)
{
    return v.kind == TJ_INT || v.kind == TJ_BOOL;
}

static int64_t integral(tj_value v)
{
    return v.kind == TJ_INT ? v.as.integer : v.as.truth;
}

static bool is_sequence(tj_value v)
{
    return v.kind == TJ_STRING || v.kind == TJ_LIST || v.kind == TJ_TUPLE;
}

bool tj_arithmetic(tj_run *run, tj_op op, tj_value a, tj_value b, tj_value *out)
{
    if (a.kind == TJ_UNDEFINED || b.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, a.kind == TJ_UNDEFINED ? a : b);
    if (tj_is_number(a) && tj_is_number(b)) {
        bool input = a.input || b.input;
        bool done = is_integral(a) && is_integral(b)
                        ? integers(run, op, integral(a), integral(b), out)
                        : reals(run, op, tj_to_double(a), tj_to_double(b), out);
        out->input = input;
        return done;
    }
    if (op == TJ_OP_ADD && a.kind == b.kind) {
        tj_builder built = {0};
        if (a.kind == TJ_STRING)
            return tj_put_string(run, &built, a.as.string) &&
                   tj_put_string(run, &built, b.as.string) && tj_built(run, &built, out);
        if (a.kind == TJ_LIST || a.kind == TJ_TUPLE)
            return add_sequences(run, a, b, out);
    }
    if (op == TJ_OP_MULTIPLY && is_sequence(a) && is_integral(b))
        return repeat(run, a, integral(b), out);
    if (op == TJ_OP_MULTIPLY && is_integral(a) && is_sequence(b))
        return repeat(run, b, integral(a), out);
    if (op == TJ_OP_MODULO && a.kind == TJ_STRING)
        return tj_fail(run, "formatting a string with %% is not supported");
    return tj_fail(run, "unsupported operand type(s) for %s: '%s' and '%s'", symbols[op],
                   tj_type_name(a), tj_type_name(b));
}
