/* jinja_tests.c - what stands behind "is". Each gives a truth value. */
#include "core/model/jinja_eval.h"

#include <string.h>

static bool answer(tj_call *c, bool truth)
{
    *c->out = tj_bool(truth);
    return true;
}

static bool test_defined(tj_call *c)
{
    return answer(c, c->self.kind != TJ_UNDEFINED);
}

static bool test_undefined(tj_call *c)
{
    return answer(c, c->self.kind == TJ_UNDEFINED);
}

static bool test_none(tj_call *c)
{
    return answer(c, c->self.kind == TJ_NONE);
}

static bool test_boolean(tj_call *c)
{
    return answer(c, c->self.kind == TJ_BOOL);
}

static bool test_true(tj_call *c)
{
    return answer(c, c->self.kind == TJ_BOOL && c->self.as.truth);
}

static bool test_false(tj_call *c)
{
    return answer(c, c->self.kind == TJ_BOOL && !c->self.as.truth);
}

static bool test_integer(tj_call *c)
{
    return answer(c, c->self.kind == TJ_INT);
}

static bool test_float(tj_call *c)
{
    return answer(c, c->self.kind == TJ_FLOAT);
}

static bool test_number(tj_call *c)
{
    return answer(c, tj_is_number(c->self));
}

static bool test_string(tj_call *c)
{
    return answer(c, c->self.kind == TJ_STRING);
}

static bool test_mapping(tj_call *c)
{
    return answer(c, c->self.kind == TJ_DICT);
}

/* What has a length and items: also strings and dicts, and undefined. */
static bool test_sequence(tj_call *c)
{
    return answer(c, c->self.kind == TJ_STRING || c->self.kind == TJ_LIST ||
                         c->self.kind == TJ_TUPLE || c->self.kind == TJ_DICT ||
                         c->self.kind == TJ_UNDEFINED);
}

static bool test_iterable(tj_call *c)
{
    return answer(c, c->self.kind == TJ_STRING || c->self.kind == TJ_LIST ||
                         c->self.kind == TJ_TUPLE || c->self.kind == TJ_DICT ||
                         c->self.kind == TJ_UNDEFINED || c->self.kind == TJ_ITERATOR ||
                         c->self.kind == TJ_LOOP);
}

/* Undefined can be called, too: the error comes then. */
static bool test_callable(tj_call *c)
{
    return answer(c, c->self.kind == TJ_CALLABLE || c->self.kind == TJ_UNDEFINED);
}

/* Whether self % divisor is remainder. */
static bool has_remainder(tj_call *c, tj_value divisor, int64_t remainder)
{
    bool equal;
    tj_value left;

    if (!tj_is_number(c->self) && c->self.kind != TJ_UNDEFINED)
        return tj_fail(c->run, "%s asks for a number, not %s", c->name, tj_type_name(c->self));
    return tj_arithmetic(c->run, TJ_OP_MODULO, c->self, divisor, &left) &&
           tj_equal(c->run, left, tj_int(remainder), &equal) && answer(c, equal);
}

static bool test_odd(tj_call *c)
{
    return has_remainder(c, tj_int(2), 1);
}

static bool test_even(tj_call *c)
{
    return has_remainder(c, tj_int(2), 0);
}

static bool test_divisibleby(tj_call *c)
{
    return has_remainder(c, c->arg[0], 0);
}

static bool test_eq(tj_call *c)
{
    bool equal;
    return tj_equal(c->run, c->self, c->arg[0], &equal) && answer(c, equal);
}

static bool test_ne(tj_call *c)
{
    bool equal;
    return tj_equal(c->run, c->self, c->arg[0], &equal) && answer(c, !equal);
}

static bool test_lt(tj_call *c)
{
    int order;
    return tj_compare(c->run, c->self, c->arg[0], &order) && answer(c, order < 0);
}

static bool test_le(tj_call *c)
{
    int order;
    return tj_compare(c->run, c->self, c->arg[0], &order) && answer(c, order <= 0);
}

static bool test_gt(tj_call *c)
{
    int order;
    return tj_compare(c->run, c->self, c->arg[0], &order) && answer(c, order > 0);
}

static bool test_ge(tj_call *c)
{
    int order;
    return tj_compare(c->run, c->self, c->arg[0], &order) && answer(c, order >= 0);
}

static bool test_in(tj_call *c)
{
    bool contains;
    return tj_contains(c->run, c->arg[0], c->self, &contains) && answer(c, contains);
}

/* The same object: for constants that is the same value of the same kind. */
static bool test_sameas(tj_call *c)
{
    bool same = c->self.kind == c->arg[0].kind;

    if (same && (c->self.kind == TJ_LIST || c->self.kind == TJ_DICT || c->self.kind == TJ_TUPLE))
        return answer(c, c->self.as.list == c->arg[0].as.list);
    return !same ? answer(c, false) : test_eq(c);
}

static bool one_case(tj_call *c, bool upper)
{
    const tj_string *s;
    tj_value changed;

    if (!tj_self_text(c, &s) || !tj_change_case(c->run, s, upper, &changed))
        return false;
    /* Something must have a case: then changing it the other way changes the text. */
    if (!tj_string_equal(s, changed.as.string))
        return answer(c, false);
    return tj_change_case(c->run, s, !upper, &changed) &&
           answer(c, !tj_string_equal(s, changed.as.string));
}

static bool test_upper(tj_call *c)
{
    return one_case(c, true);
}

static bool test_lower(tj_call *c)
{
    return one_case(c, false);
}

static bool test_filter(tj_call *c)
{
    return answer(c, c->self.kind == TJ_STRING && tj_find_filter(c->self.as.string) != NULL);
}

static bool test_test(tj_call *c)
{
    return answer(c, c->self.kind == TJ_STRING && tj_find_test(c->self.as.string) != NULL);
}

const tj_builtin *tj_find_test(const tj_string *name)
{
    static const tj_builtin tests[] = {
        {"!=", "other", 1, test_ne},
        {"<", "other", 1, test_lt},
        {"<=", "other", 1, test_le},
        {"==", "other", 1, test_eq},
        {">", "other", 1, test_gt},
        {">=", "other", 1, test_ge},
        {"boolean", "", 0, test_boolean},
        {"callable", "", 0, test_callable},
        {"defined", "", 0, test_defined},
        {"divisibleby", "num", 1, test_divisibleby},
        {"eq", "other", 1, test_eq},
        {"equalto", "other", 1, test_eq},
        {"even", "", 0, test_even},
        {"false", "", 0, test_false},
        {"filter", "", 0, test_filter},
        {"float", "", 0, test_float},
        {"ge", "other", 1, test_ge},
        {"greaterthan", "other", 1, test_gt},
        {"gt", "other", 1, test_gt},
        {"in", "seq", 1, test_in},
        {"integer", "", 0, test_integer},
        {"iterable", "", 0, test_iterable},
        {"le", "other", 1, test_le},
        {"lessthan", "other", 1, test_lt},
        {"lower", "", 0, test_lower},
        {"lt", "other", 1, test_lt},
        {"mapping", "", 0, test_mapping},
        {"ne", "other", 1, test_ne},
        {"none", "", 0, test_none},
        {"number", "", 0, test_number},
        {"odd", "", 0, test_odd},
        {"sameas", "other", 1, test_sameas},
        {"sequence", "", 0, test_sequence},
        {"string", "", 0, test_string},
        {"test", "", 0, test_test},
        {"true", "", 0, test_true},
        {"undefined", "", 0, test_undefined},
        {"upper", "", 0, test_upper},
    };

    return tj_find_builtin(tests, sizeof(tests) / sizeof(tests[0]), name);
}
