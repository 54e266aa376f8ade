/* jinja_eval.h - scopes, loops and callables; what evaluation and execution share. */
#ifndef TR_CORE_MODEL_JINJA_EVAL_H
#define TR_CORE_MODEL_JINJA_EVAL_H

#include "core/model/jinja_ast.h"
#include "core/model/jinja_builtins.h"

typedef struct tj_variable tj_variable;
struct tj_variable {
    const tj_string *name;
    tj_value value;
    tj_variable *next;
};

/* A scope. The outermost is the template's, below it lie the caller's variables and the functions.
 * Each pass of a loop, each call and each with block has its own. */
typedef struct tj_frame tj_frame;
struct tj_frame {
    tj_frame *parent;
    tj_variable *variables;
};

/* The variable `loop` of a for statement. */
struct tj_loop {
    const tj_list *items;
    size_t index;        /* from 0 */
    bool changed_before; /* loop.changed() was called, with changed as its value */
    tj_value changed;
};

/* Something that can be called: a builtin (self: what the method belongs to) or a macro. */
struct tj_callable {
    const tj_builtin *builtin; /* NULL: a macro */
    tj_value self;
    const tj_node *macro; /* MACRO or CALL_BLOCK: parameters and body */
    tj_frame *frame;      /* where the macro was defined */
};

bool tj_scope_push(tj_run *run, tj_frame *parent);
bool tj_scope_set(tj_run *run, const tj_string *name, tj_value value);

/* A variable, a caller's variable, a function, or undefined. */
bool tj_scope_find(tj_run *run, const tj_string *name, tj_value *out);

/* Opens and closes one level of blocks and calls (TJ_DEPTH_MAX). */
bool tj_enter(tj_run *run);
void tj_leave(tj_run *run);

bool tj_eval(tj_run *run, const tj_node *node, tj_value *out);

/* Calls a value; body is the call block that caller() renders, NULL when there is none. */
bool tj_call_value(tj_run *run, tj_value callee, const tj_arguments *arguments,
                   const tj_callable *body, tj_value *out);

/* Evaluates ARGUMENT nodes. */
bool tj_eval_arguments(tj_run *run, const tj_node *list, tj_arguments *out);

/* a op b for the arithmetic operators. */
bool tj_arithmetic(tj_run *run, tj_op op, tj_value a, tj_value b, tj_value *out);

/* Renders a macro (jinja_exec.c). */
bool tj_call_macro(tj_run *run, const tj_callable *macro, const tj_arguments *arguments,
                   const tj_callable *body, tj_value *out);

#endif
