/* trace_sample_main.c - writes the made-up trace as JSON to standard output, for check_trace.py. */
#include "tests/tools/trace_sample.h"

#include "tools/trace_json.h"

int main(void)
{
    tr_trace_node nodes[SAMPLE_NODES];
    tr_trace_join join;

    sample_make(nodes);
    if (tr_trace_join_make(&join, nodes, SAMPLE_NODES, NULL) != TR_OK)
        return 1;
    tr_trace_json_write(&join, nodes, SAMPLE_NODES, stdout);
    tr_trace_join_free(&join);
    for (uint32_t n = 0; n < SAMPLE_NODES; n++)
        tr_trace_node_free(&nodes[n]);
    return fflush(stdout) == 0 ? 0 : 1;
}
