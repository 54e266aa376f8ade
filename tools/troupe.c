/* troupe.c - the list of commands. To add one: one declaration, one row. */
#include "tools/cli.h"

#include <stddef.h>

extern const tr_command tr_cmd_admin;
extern const tr_command tr_cmd_chat;
extern const tr_command tr_cmd_inspect;
extern const tr_command tr_cmd_launch;
extern const tr_command tr_cmd_logits;
extern const tr_command tr_cmd_node;
extern const tr_command tr_cmd_perplexity;
extern const tr_command tr_cmd_run;
extern const tr_command tr_cmd_trace;

static const tr_command *const commands[] = {
    &tr_cmd_launch,
    &tr_cmd_node,
    &tr_cmd_run,
    &tr_cmd_chat,
    &tr_cmd_logits,
    &tr_cmd_perplexity,
    &tr_cmd_inspect,
    &tr_cmd_admin,
    &tr_cmd_trace,
    NULL,
};

int main(int argc, char **argv)
{
    return tr_cli_main(commands, argc, argv);
}
