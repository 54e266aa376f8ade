/* jinja_eval.c - evaluates expressions. */
#include "core/model/jinja_eval.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- scopes ---- */

bool tj_scope_push(tj_run *run, tj_frame *parent)
{
    tj_frame *frame = tj_take(run, sizeof(*frame));

    if (frame == NULL)
        return false;
    frame->parent = parent;
    run->frame = frame;
    return true;
}

/* The variable of a frame, NULL when it has none; *looked counts those that were looked at. */
static tj_variable *find_variable(tj_frame *frame, const tj_string *name, size_t *looked)
{
    for (tj_variable *v = frame->variables; v != NULL; v = v->next, (*looked)++)
        if (tj_string_equal(v->name, name))
            return v;
    return NULL;
}

bool tj_scope_set(tj_run *run, const tj_string *name, tj_value value)
{
    size_t looked = 0;
    tj_variable *v = find_variable(run->frame, name, &looked);

    if (!tj_charge(run, looked / 16))
        return false;
    if (v == NULL) {
        v = tj_take(run, sizeof(*v));
        if (v == NULL)
            return false;
        v->name = name;
        v->next = run->frame->variables;
        run->frame->variables = v;
    }
    v->value = value;
    return true;
}

static bool make_callable(tj_run *run, const tj_builtin *builtin, tj_value self, tj_value *out)
{
    tj_callable *callable = tj_take(run, sizeof(*callable));

    if (callable == NULL)
        return false;
    *callable = (tj_callable){.builtin = builtin, .self = self};
    *out = (tj_value){.kind = TJ_CALLABLE, .as.callable = callable};
    return true;
}

static tj_value undefined(const tj_string *name, tj_kind owner)
{
    return (tj_value){.kind = TJ_UNDEFINED, .owner = (uint8_t)owner, .as.string = name};
}

bool tj_scope_find(tj_run *run, const tj_string *name, tj_value *out)
{
    size_t looked = 0;

    for (tj_frame *frame = run->frame; frame != NULL; frame = frame->parent) {
        const tj_variable *v = find_variable(frame, name, &looked);
        if (v != NULL) {
            *out = v->value;
            return tj_charge(run, looked / 16);
        }
    }
    if (!tj_charge(run, (looked + run->context->count) / 16))
        return false;
    const tj_value *given = tj_dict_find_text(run->context, name);
    if (given != NULL) {
        *out = *given;
        return true;
    }
    const tj_builtin *function = tj_find_function(name);
    if (function != NULL)
        return make_callable(run, function, tj_none(), out);
    *out = undefined(name, TJ_UNDEFINED);
    return true;
}

bool tj_enter(tj_run *run)
{
    if (run->depth == TJ_DEPTH_MAX)
        return tj_fail(run, "blocks and calls nested more than %u deep", TJ_DEPTH_MAX);
    run->depth++;
    return true;
}

void tj_leave(tj_run *run)
{
    assert(run->depth > 0);
    run->depth--;
}

/* ---- attributes and items ---- */

/* loop.index and its like. False when there is no such attribute. */
static bool loop_attribute(const tj_loop *loop, const tj_string *name, tj_value *out)
{
    size_t count = loop->items->count, index = loop->index;

    if (tj_string_is(name, "index"))
        *out = tj_int((int64_t)index + 1);
    else if (tj_string_is(name, "index0"))
        *out = tj_int((int64_t)index);
    else if (tj_string_is(name, "revindex"))
        *out = tj_int((int64_t)(count - index));
    else if (tj_string_is(name, "revindex0"))
        *out = tj_int((int64_t)(count - index) - 1);
    else if (tj_string_is(name, "first"))
        *out = tj_bool(index == 0);
    else if (tj_string_is(name, "last"))
        *out = tj_bool(index + 1 == count);
    else if (tj_string_is(name, "length"))
        *out = tj_int((int64_t)count);
    else if (tj_string_is(name, "depth"))
        *out = tj_int(1); /* only recursive loops have a depth of their own */
    else if (tj_string_is(name, "depth0"))
        *out = tj_int(0);
    else if (tj_string_is(name, "previtem"))
        *out = index > 0 ? loop->items->items[index - 1] : undefined(name, TJ_LOOP);
    else if (tj_string_is(name, "nextitem"))
        *out = index + 1 < count ? loop->items->items[index + 1] : undefined(name, TJ_LOOP);
    else
        return false;
    return true;
}

/* Methods, and attributes that are no entries. *found says whether there is one. */
static bool own_attribute(tj_run *run, tj_value v, const tj_string *name, tj_value *out,
                          bool *found)
{
    const tj_builtin *method = tj_find_method((tj_kind)v.kind, name);

    *found = true;
    if (v.kind == TJ_LOOP && loop_attribute(v.as.loop, name, out))
        return true;
    if (v.kind == TJ_LOOP)
        method = tj_find_loop_method(name);
    if (method != NULL)
        return make_callable(run, method, v, out);
    if (v.kind == TJ_NAMESPACE) {
        if (!tj_charge(run, v.as.dict->count / 16))
            return false;
        const tj_value *entry = tj_dict_find_text(v.as.dict, name);
        if (entry != NULL) {
            *out = *entry;
            return true;
        }
    }
    *found = false;
    return true;
}

bool tj_get_attribute(tj_run *run, tj_value v, const tj_string *name, tj_value *out)
{
    bool found;

    if (v.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, v);
    if (!own_attribute(run, v, name, out, &found) || found)
        return run->status == TR_OK;
    const tj_value *entry = v.kind == TJ_DICT ? tj_dict_find_text(v.as.dict, name) : NULL;
    *out = entry != NULL ? *entry : undefined(name, (tj_kind)v.kind);
    return tj_charge(run, v.kind == TJ_DICT ? v.as.dict->count / 16 : 0);
}

/* Place of an index that may count from the end; SIZE_MAX outside. */
static size_t resolve_index(int64_t index, size_t count)
{
    if (index < 0)
        index += (int64_t)count;
    return index < 0 || (uint64_t)index >= count ? SIZE_MAX : (size_t)index;
}

static bool item_at(tj_run *run, tj_value v, int64_t index, tj_value *out, bool *found)
{
    size_t count, at;

    *found = false;
    if (!tj_length(run, v, &count))
        return false;
    at = resolve_index(index, count);
    if (at == SIZE_MAX)
        return true;
    *found = true;
    if (v.kind != TJ_STRING) {
        *out = v.as.list->items[at];
        return true;
    }
    const tj_string *s = v.as.string;
    size_t start = tj_string_offset(s, at);
    const tj_string rest = {.bytes = s->bytes + start, .size = s->size - start};
    return tj_charge_bytes(run, s->size) &&
           tj_string_cut(run, s, start, start + tj_string_offset(&rest, 1), out);
}

/* A key as the name of what is missing. */
static bool missing_item(tj_run *run, tj_value v, tj_value key, tj_value *out)
{
    const tj_string *name;

    if (key.kind == TJ_STRING) {
        name = key.as.string;
    } else {
        tj_builder b = {0};
        tj_value built;
        if (!tj_put_repr(run, &b, key) || !tj_built(run, &b, &built))
            return false;
        name = built.as.string;
    }
    *out = undefined(name, (tj_kind)v.kind);
    return true;
}

bool tj_get_item(tj_run *run, tj_value v, tj_value key, tj_value *out)
{
    const tj_value *entry = NULL;
    bool found = false;

    if (v.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, v);
    if (key.kind == TJ_UNDEFINED && v.kind != TJ_DICT)
        return missing_item(run, v, key, out);
    if (v.kind == TJ_DICT) {
        if (!tj_dict_find(run, v.as.dict, key, &entry))
            return false;
        if (entry != NULL) {
            *out = *entry;
            return true;
        }
    }
    if ((v.kind == TJ_STRING || v.kind == TJ_LIST || v.kind == TJ_TUPLE) &&
        (key.kind == TJ_INT || key.kind == TJ_BOOL)) {
        if (!item_at(run, v, key.kind == TJ_INT ? key.as.integer : key.as.truth, out, &found) ||
            found)
            return run->status == TR_OK;
    }
    if (key.kind == TJ_STRING && (!own_attribute(run, v, key.as.string, out, &found) || found))
        return run->status == TR_OK;
    return missing_item(run, v, key, out);
}

/* Start and end of a slice with a step, as Python resolves them: the elements are start, start +
 * step, ... before stop. */
typedef struct {
    int64_t start, stop, step;
} slice_range;

static bool slice_part(tj_run *run, const tj_node *node, bool *given, int64_t *value)
{
    tj_value v;

    *given = false;
    if (node == NULL)
        return true;
    if (!tj_eval(run, node, &v))
        return false;
    if (v.kind == TJ_NONE)
        return true;
    if (v.kind != TJ_INT && v.kind != TJ_BOOL)
        return tj_fail(run, "slice indices must be integers or None, not %s", tj_type_name(v));
    *given = true;
    *value = v.kind == TJ_INT ? v.as.integer : v.as.truth;
    return true;
}

static int64_t slice_clamp(int64_t value, int64_t count, int64_t low, int64_t high)
{
    if (value < 0)
        value = value < -count ? low : value + count;
    return value < low ? low : value > high ? high : value;
}

static bool resolve_slice(tj_run *run, const tj_node *node, size_t count, slice_range *r)
{
    bool start_given, stop_given, step_given;
    int64_t n = (int64_t)count, start = 0, stop = 0, step = 1;

    if (!slice_part(run, node->a, &start_given, &start) ||
        !slice_part(run, node->b, &stop_given, &stop) ||
        !slice_part(run, node->c, &step_given, &step))
        return false;
    if (!step_given)
        step = 1;
    if (step == 0)
        return tj_fail(run, "slice step cannot be zero");
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    r->step = step < -n - 1 ? -n - 1 : step > n + 1 ? n + 1 : step;
    r->start = start_given ? slice_clamp(start, n, low, high) : step > 0 ? low : high;
    r->stop = stop_given ? slice_clamp(stop, n, low, high) : step > 0 ? high : low;
    return true;
}

static bool slice_string(tj_run *run, const tj_string *s, const slice_range *r, tj_value *out)
{
    bool ascii = tj_string_chars(s) == s->size;
    tj_builder b = {0};

    if (!tj_charge_bytes(run, s->size))
        return false;
    if (r->step == 1) {
        if (r->stop <= r->start)
            return tj_string_cut(run, s, 0, 0, out);
        size_t start = ascii ? (size_t)r->start : tj_string_offset(s, (size_t)r->start);
        size_t stop = ascii ? (size_t)r->stop : tj_string_offset(s, (size_t)r->stop);
        return tj_string_cut(run, s, start, stop, out);
    }
    for (int64_t i = r->start; r->step > 0 ? i < r->stop : i > r->stop; i += r->step) {
        size_t start = ascii ? (size_t)i : tj_string_offset(s, (size_t)i);
        const tj_string rest = {.bytes = s->bytes + start, .size = s->size - start};
        if (!tj_charge(run, ascii ? 1 : 1 + s->size / 64) ||
            !tj_put_part(run, &b, s, start, start + tj_string_offset(&rest, 1)))
            return false;
    }
    return tj_built(run, &b, out);
}

static bool eval_slice(tj_run *run, tj_value v, const tj_node *node, tj_value *out)
{
    slice_range r;
    size_t count;

    if (v.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, v);
    if (v.kind != TJ_STRING && v.kind != TJ_LIST && v.kind != TJ_TUPLE)
        return tj_fail(run, "a %s cannot be sliced", tj_type_name(v));
    if (!tj_length(run, v, &count) || !resolve_slice(run, node, count, &r))
        return false;
    if (v.kind == TJ_STRING)
        return slice_string(run, v.as.string, &r, out);
    if (!tj_list_make(run, (tj_kind)v.kind, 0, out))
        return false;
    for (int64_t i = r.start; r.step > 0 ? i < r.stop : i > r.stop; i += r.step)
        if (!tj_list_push(run, out->as.list, v.as.list->items[i]))
            return false;
    out->input = v.input;
    return true;
}

/* ---- calls ---- */

bool tj_eval_arguments(tj_run *run, const tj_node *list, tj_arguments *out)
{
    size_t count = 0, i = 0;

    for (const tj_node *node = list; node != NULL; node = node->next)
        count++;
    *out = (tj_arguments){.count = count};
    if (count == 0)
        return true;
    tj_argument *items = tj_take(run, count * sizeof(*items));
    if (items == NULL)
        return false;
    for (const tj_node *node = list; node != NULL; node = node->next, i++) {
        items[i].keyword = node->text;
        if (!tj_eval(run, node->a, &items[i].value))
            return false;
    }
    out->items = items;
    return true;
}

bool tj_call_value(tj_run *run, tj_value callee, const tj_arguments *arguments,
                   const tj_callable *body, tj_value *out)
{
    if (callee.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, callee);
    if (callee.kind != TJ_CALLABLE)
        return tj_fail(run, "'%s' object is not callable", tj_type_name(callee));
    const tj_callable *callable = callee.as.callable;
    if (callable->builtin == NULL)
        return tj_call_macro(run, callable, arguments, body, out);
    if (body != NULL)
        return tj_fail(run, "%s takes no call block", callable->builtin->name);
    return tj_call_builtin(run, callable->builtin, callable->self, arguments, out);
}

static bool eval_call(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value callee;
    tj_arguments arguments;

    if (!tj_eval(run, node->a, &callee) || !tj_eval_arguments(run, node->list, &arguments))
        return false;
    run->line = node->line;
    run->column = node->column;
    return tj_call_value(run, callee, &arguments, NULL, out);
}

static bool eval_builtin(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value self;
    tj_arguments arguments;

    if (!tj_eval(run, node->a, &self) || !tj_eval_arguments(run, node->list, &arguments))
        return false;
    run->line = node->line;
    run->column = node->column;
    if (!tj_call_builtin(run, node->builtin, self, &arguments, out))
        return false;
    if (node->kind == TJ_NODE_TEST)
        *out = tj_bool(tj_truth(*out) != node->negated);
    return true;
}

/* ---- operators ---- */

static bool compare(tj_run *run, tj_op op, tj_value a, tj_value b, bool *truth)
{
    int order;

    switch (op) {
    case TJ_OP_EQUAL:
        return tj_equal(run, a, b, truth);
    case TJ_OP_NOT_EQUAL:
        if (!tj_equal(run, a, b, truth))
            return false;
        *truth = !*truth;
        return true;
    case TJ_OP_IN:
        return tj_contains(run, b, a, truth);
    case TJ_OP_NOT_IN:
        if (!tj_contains(run, b, a, truth))
            return false;
        *truth = !*truth;
        return true;
    default:
        if (!tj_compare(run, a, b, &order))
            return false;
        *truth = op == TJ_OP_LESS         ? order < 0
                 : op == TJ_OP_LESS_EQUAL ? order <= 0
                 : op == TJ_OP_GREATER    ? order > 0
                                          : order >= 0;
        return true;
    }
}

/* a < b < c: each operand is evaluated once, and the first false comparison ends it. */
static bool eval_compare(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value left, right;
    bool truth = true;

    if (!tj_eval(run, node->a, &left))
        return false;
    for (const tj_node *operand = node->list; operand != NULL && truth; operand = operand->next) {
        if (!tj_eval(run, operand->a, &right))
            return false;
        run->line = operand->line;
        run->column = operand->column;
        if (!compare(run, operand->op, left, right, &truth))
            return false;
        left = right;
    }
    *out = tj_bool(truth);
    return true;
}

static bool eval_concat(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_builder b = {0};
    tj_value v;

    for (const tj_node *item = node->list; item != NULL; item = item->next)
        if (!tj_eval(run, item, &v) || !tj_put_str(run, &b, v))
            return false;
    return tj_built(run, &b, out);
}

static bool eval_unary(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value v;

    if (!tj_eval(run, node->a, &v))
        return false;
    if (v.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, v);
    if (!tj_is_number(v))
        return tj_fail(run, "bad operand type for unary %c: '%s'",
                       node->op == TJ_OP_SUBTRACT ? '-' : '+', tj_type_name(v));
    if (node->op == TJ_OP_SUBTRACT)
        return tj_arithmetic(run, TJ_OP_MULTIPLY, v, tj_int(-1), out);
    return tj_arithmetic(run, TJ_OP_ADD, v, tj_int(0), out);
}

static bool eval_sequence(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value item;

    if (!tj_list_make(run, node->kind == TJ_NODE_LIST ? TJ_LIST : TJ_TUPLE, 0, out))
        return false;
    for (const tj_node *child = node->list; child != NULL; child = child->next)
        if (!tj_eval(run, child, &item) || !tj_list_push(run, out->as.list, item))
            return false;
    return true;
}

static bool eval_dict(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value key, value;

    if (!tj_dict_make(run, TJ_DICT, 0, out))
        return false;
    for (const tj_node *pair = node->list; pair != NULL; pair = pair->next)
        if (!tj_eval(run, pair->a, &key) || !tj_eval(run, pair->b, &value) ||
            !tj_dict_set(run, out->as.dict, key, value))
            return false;
    return true;
}

static bool eval_condition(tj_run *run, const tj_node *node, tj_value *out)
{
    static const tj_string name = {.bytes = "the missing else of a conditional", .size = 33};

    if (!tj_eval(run, node->a, out))
        return false;
    const tj_node *chosen = tj_truth(*out) ? node->b : node->c;
    if (chosen != NULL)
        return tj_eval(run, chosen, out);
    *out = undefined(&name, TJ_UNDEFINED);
    return true;
}

static bool eval_index(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value object, key;

    if (!tj_eval(run, node->a, &object))
        return false;
    if (node->b->kind == TJ_NODE_SLICE)
        return eval_slice(run, object, node->b, out);
    if (!tj_eval(run, node->b, &key))
        return false;
    run->line = node->line;
    run->column = node->column;
    return tj_get_item(run, object, key, out);
}

static bool eval_binary(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value a, b;

    if (!tj_eval(run, node->a, &a) || !tj_eval(run, node->b, &b))
        return false;
    run->line = node->line;
    run->column = node->column;
    return tj_arithmetic(run, node->op, a, b, out);
}

static bool eval_attribute(tj_run *run, const tj_node *node, tj_value *out)
{
    tj_value object;

    if (!tj_eval(run, node->a, &object))
        return false;
    run->line = node->line;
    run->column = node->column;
    return tj_get_attribute(run, object, node->text, out);
}

/* and, or give the operand that decided, as in Python. */
static bool eval_logic(tj_run *run, const tj_node *node, tj_value *out)
{
    if (!tj_eval(run, node->a, out))
        return false;
    if (tj_truth(*out) == (node->kind == TJ_NODE_OR))
        return true;
    return tj_eval(run, node->b, out);
}

static bool eval_node(tj_run *run, const tj_node *node, tj_value *out)
{
    switch (node->kind) {
    case TJ_NODE_CONSTANT:
        *out = node->value;
        return true;
    case TJ_NODE_NAME:
        return tj_scope_find(run, node->text, out);
    case TJ_NODE_LIST:
    case TJ_NODE_TUPLE:
        return eval_sequence(run, node, out);
    case TJ_NODE_DICT:
        return eval_dict(run, node, out);
    case TJ_NODE_ATTRIBUTE:
        return eval_attribute(run, node, out);
    case TJ_NODE_INDEX:
        return eval_index(run, node, out);
    case TJ_NODE_CALL:
        return eval_call(run, node, out);
    case TJ_NODE_FILTER:
    case TJ_NODE_TEST:
        return eval_builtin(run, node, out);
    case TJ_NODE_NOT:
        if (!tj_eval(run, node->a, out))
            return false;
        *out = tj_bool(!tj_truth(*out));
        return true;
    case TJ_NODE_UNARY:
        return eval_unary(run, node, out);
    case TJ_NODE_BINARY:
        return eval_binary(run, node, out);
    case TJ_NODE_AND:
    case TJ_NODE_OR:
        return eval_logic(run, node, out);
    case TJ_NODE_COMPARE:
        return eval_compare(run, node, out);
    case TJ_NODE_CONCAT:
        return eval_concat(run, node, out);
    case TJ_NODE_CONDITION:
        return eval_condition(run, node, out);
    case TJ_NODE_CAPTURED:
        *out = run->captured;
        return true;
    default:
        assert(!"a statement is no expression");
        return false;
    }
}

bool tj_eval(tj_run *run, const tj_node *node, tj_value *out)
{
    run->line = node->line;
    run->column = node->column;
    if (run->nesting == TJ_NESTING_MAX)
        return tj_fail(run, "evaluation nested more than %u deep", TJ_NESTING_MAX);
    if (!tj_charge(run, 1))
        return false;
    run->nesting++;
    bool done = eval_node(run, node, out);
    run->nesting--;
    return done;
}
