/* jinja_exec.c - runs statements and macros. */
#include "core/model/jinja_eval.h"

#include <assert.h>

typedef enum { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE, FLOW_FAILED } flow;

static flow exec_body(tj_run *run, const tj_node *body);

static flow done_or_failed(bool done)
{
    return done ? FLOW_NEXT : FLOW_FAILED;
}

/* ---- output ---- */

static flow exec_output(tj_run *run, const tj_node *node)
{
    tj_value v;

    if (!tj_eval(run, node->a, &v))
        return FLOW_FAILED;
    run->line = node->line;
    run->column = node->column;
    return done_or_failed(tj_put_str(run, run->out, v));
}

/* Renders a body into a string. break and continue go through it, as in Jinja. */
static flow capture(tj_run *run, const tj_node *body, tj_value *out)
{
    tj_builder *outer = run->out;
    tj_builder inner = {0};

    run->out = &inner;
    flow f = exec_body(run, body);
    run->out = outer;
    return f == FLOW_FAILED || tj_built(run, &inner, out) ? f : FLOW_FAILED;
}

/* ---- assignments ---- */

static bool assign(tj_run *run, const tj_node *target, tj_value value)
{
    const tj_list *items;
    size_t count = 0, i = 0;

    if (target->kind == TJ_NODE_NAME)
        return tj_scope_set(run, target->text, value);
    if (target->kind == TJ_NODE_ATTRIBUTE) {
        tj_value object, key = {.kind = TJ_STRING, .as.string = target->text};
        if (!tj_eval(run, target->a, &object))
            return false;
        if (object.kind != TJ_NAMESPACE)
            return tj_fail(run, "cannot set an attribute of a %s, expected a namespace",
                           tj_type_name(object));
        return tj_dict_set(run, object.as.dict, key, value);
    }
    if (target->kind != TJ_NODE_TUPLE)
        return tj_fail(run, "this cannot be set");
    if (value.kind == TJ_UNDEFINED)
        return tj_fail_undefined(run, value);
    if (!tj_elements(run, value, &items))
        return false;
    for (const tj_node *node = target->list; node != NULL; node = node->next)
        count++;
    if (count != items->count)
        return tj_fail(run, "%zu values to unpack, expected %zu", items->count, count);
    for (const tj_node *node = target->list; node != NULL; node = node->next, i++)
        if (!assign(run, node, items->items[i]))
            return false;
    return true;
}

static flow exec_set(tj_run *run, const tj_node *node)
{
    tj_value v;

    return done_or_failed(tj_eval(run, node->b, &v) && assign(run, node->a, v));
}

/* The value of an expression over a captured body; bodies may lie inside each other. */
static bool eval_captured(tj_run *run, const tj_node *expression, tj_value captured, tj_value *out)
{
    tj_value outer = run->captured;

    run->captured = captured;
    bool done = tj_eval(run, expression, out);
    run->captured = outer;
    return done;
}

static flow exec_capturing(tj_run *run, const tj_node *node)
{
    tj_frame *frame = run->frame;
    tj_value v;

    if (!tj_scope_push(run, frame))
        return FLOW_FAILED;
    flow f = capture(run, node->body, &v);
    run->frame = frame;
    if (f != FLOW_NEXT)
        return f;
    if (!eval_captured(run, node->b, v, &v))
        return FLOW_FAILED;
    if (node->kind == TJ_NODE_SET_BLOCK)
        return done_or_failed(assign(run, node->a, v));
    return done_or_failed(tj_put_str(run, run->out, v));
}

/* ---- branches and loops ---- */

static flow exec_if(tj_run *run, const tj_node *node)
{
    tj_value v;

    for (const tj_node *branch = node->list; branch != NULL; branch = branch->next) {
        if (branch->a != NULL && !tj_eval(run, branch->a, &v))
            return FLOW_FAILED;
        if (branch->a == NULL || tj_truth(v))
            return exec_body(run, branch->body);
    }
    return FLOW_NEXT;
}

/* Keeps the elements for which the loop's condition holds; it sees the target, not `loop`. */
static bool filter_elements(tj_run *run, const tj_node *node, const tj_list **items)
{
    tj_frame *frame = run->frame;
    tj_value kept, v;

    if (!tj_list_make(run, TJ_LIST, 0, &kept))
        return false;
    for (size_t i = 0; i < (*items)->count; i++) {
        bool done = tj_scope_push(run, frame) && assign(run, node->a, (*items)->items[i]) &&
                    tj_eval(run, node->c, &v);
        run->frame = frame;
        if (!done || (tj_truth(v) && !tj_list_push(run, kept.as.list, (*items)->items[i])))
            return false;
    }
    *items = kept.as.list;
    return true;
}

static flow exec_passes(tj_run *run, const tj_node *node, const tj_list *items)
{
    static const tj_string name = {.bytes = "loop", .size = 4};
    tj_frame *frame = run->frame;
    tj_loop *loop = tj_take(run, sizeof(*loop));

    if (loop == NULL)
        return FLOW_FAILED;
    loop->items = items;
    tj_value loop_value = {.kind = TJ_LOOP, .as.loop = loop};
    for (size_t i = 0; i < items->count; i++) {
        loop->index = i;
        flow f = FLOW_FAILED;
        if (tj_charge(run, 1) && tj_scope_push(run, frame) &&
            tj_scope_set(run, &name, loop_value) && assign(run, node->a, items->items[i]))
            f = exec_body(run, node->body);
        run->frame = frame;
        if (f == FLOW_FAILED)
            return f;
        if (f == FLOW_BREAK)
            break;
    }
    return FLOW_NEXT;
}

static flow exec_for(tj_run *run, const tj_node *node)
{
    const tj_list *items;
    tj_value iterable;

    if (!tj_eval(run, node->b, &iterable))
        return FLOW_FAILED;
    run->line = node->line;
    run->column = node->column;
    if (!tj_elements(run, iterable, &items) ||
        (node->c != NULL && !filter_elements(run, node, &items)))
        return FLOW_FAILED;
    if (items->count > 0)
        return exec_passes(run, node, items);
    return exec_body(run, node->other);
}

static flow exec_with(tj_run *run, const tj_node *node)
{
    tj_frame *outer = run->frame;
    tj_value v;

    if (!tj_scope_push(run, outer))
        return FLOW_FAILED;
    tj_frame *inner = run->frame;
    flow f = FLOW_NEXT;
    for (const tj_node *set = node->list; set != NULL && f == FLOW_NEXT; set = set->next) {
        run->frame = outer; /* the values do not see each other */
        bool done = tj_eval(run, set->b, &v);
        run->frame = inner;
        f = done_or_failed(done && assign(run, set->a, v));
    }
    if (f == FLOW_NEXT)
        f = exec_body(run, node->body);
    run->frame = outer;
    return f;
}

/* ---- macros ---- */

static bool make_macro(tj_run *run, const tj_node *node, const tj_callable **out)
{
    tj_callable *macro = tj_take(run, sizeof(*macro));

    if (macro == NULL)
        return false;
    *macro = (tj_callable){.macro = node, .frame = run->frame};
    *out = macro;
    return true;
}

static flow exec_macro(tj_run *run, const tj_node *node)
{
    tj_value v = {.kind = TJ_CALLABLE};

    return done_or_failed(make_macro(run, node, &v.as.callable) &&
                          tj_scope_set(run, node->text, v));
}

static flow exec_call_block(tj_run *run, const tj_node *node)
{
    const tj_callable *body;
    tj_arguments arguments;
    tj_value callee, v;

    if (!make_macro(run, node, &body) || !tj_eval(run, node->a->a, &callee) ||
        !tj_eval_arguments(run, node->a->list, &arguments))
        return FLOW_FAILED;
    return done_or_failed(tj_call_value(run, callee, &arguments, body, &v) &&
                          tj_put_str(run, run->out, v));
}

/* The argument for a parameter: by position, by keyword. NULL when it was not given. */
static const tj_argument *find_argument(const tj_arguments *arguments, const tj_node *parameter,
                                        size_t position)
{
    if (position < arguments->count && arguments->items[position].keyword == NULL)
        return &arguments->items[position];
    for (size_t i = 0; i < arguments->count; i++)
        if (arguments->items[i].keyword != NULL &&
            tj_string_equal(arguments->items[i].keyword, parameter->text))
            return &arguments->items[i];
    return NULL;
}

/* Sets the parameters in the macro's new scope. One without argument and default is undefined. */
static bool bind_parameters(tj_run *run, const tj_node *macro, const tj_arguments *arguments)
{
    size_t position = 0, used = 0;

    for (const tj_node *p = macro->list; p != NULL; p = p->next, position++) {
        const tj_argument *argument = find_argument(arguments, p, position);
        tj_value v = {.kind = TJ_UNDEFINED, .as.string = p->text};
        if (!tj_charge(run, 1 + arguments->count / 16))
            return false;
        if (argument != NULL) {
            v = argument->value;
            used++;
        } else if (p->a != NULL && !tj_eval(run, p->a, &v)) {
            return false;
        }
        if (!tj_scope_set(run, p->text, v))
            return false;
    }
    if (used < arguments->count)
        return tj_fail(run,
                       "a macro with %zu parameters is called with %zu arguments it does not "
                       "have, or with one given twice",
                       position, arguments->count - used);
    return true;
}

bool tj_call_macro(tj_run *run, const tj_callable *macro, const tj_arguments *arguments,
                   const tj_callable *body, tj_value *out)
{
    static const tj_string caller = {.bytes = "caller", .size = 6};
    tj_frame *frame = run->frame;
    tj_value caller_value = {.kind = TJ_CALLABLE, .as.callable = body};

    if (!tj_enter(run))
        return false;
    bool done = tj_scope_push(run, macro->frame) && bind_parameters(run, macro->macro, arguments) &&
                (body == NULL || tj_scope_set(run, &caller, caller_value)) &&
                capture(run, macro->macro->body, out) == FLOW_NEXT;
    run->frame = frame;
    tj_leave(run);
    return done;
}

/* ---- bodies ---- */

static flow exec_node(tj_run *run, const tj_node *node)
{
    switch (node->kind) {
    case TJ_NODE_TEXT:
        return done_or_failed(tj_put_string(run, run->out, node->value.as.string));
    case TJ_NODE_OUTPUT:
        return exec_output(run, node);
    case TJ_NODE_IF:
        return exec_if(run, node);
    case TJ_NODE_FOR:
        return exec_for(run, node);
    case TJ_NODE_SET:
        return exec_set(run, node);
    case TJ_NODE_SET_BLOCK:
    case TJ_NODE_FILTER_BLOCK:
        return exec_capturing(run, node);
    case TJ_NODE_MACRO:
        return exec_macro(run, node);
    case TJ_NODE_CALL_BLOCK:
        return exec_call_block(run, node);
    case TJ_NODE_WITH:
        return exec_with(run, node);
    case TJ_NODE_BLOCK:
        return exec_body(run, node->body);
    case TJ_NODE_BREAK:
        return FLOW_BREAK;
    case TJ_NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        assert(!"an expression is no statement");
        return FLOW_FAILED;
    }
}

static flow exec_body(tj_run *run, const tj_node *body)
{
    flow f = FLOW_NEXT;

    if (!tj_enter(run))
        return FLOW_FAILED;
    for (const tj_node *node = body; node != NULL && f == FLOW_NEXT; node = node->next) {
        run->line = node->line;
        run->column = node->column;
        f = tj_charge(run, 1) ? exec_node(run, node) : FLOW_FAILED;
    }
    tj_leave(run);
    return f;
}

tr_status tj_render(const tj_template *t, tj_run *run, const tj_dict *variables,
                    const tj_string **out)
{
    tj_value rendered;

    run->name = t->name;
    run->context = variables;
    if (tj_scope_push(run, NULL) && capture(run, t->body, &rendered) == FLOW_NEXT)
        *out = rendered.as.string;
    assert(run->depth == 0);
    return run->status;
}
