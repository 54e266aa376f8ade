/* path.c - which transports an endpoint really uses.
 *
 * This is how one sees that UCX chose TCP where shared memory was meant. */
#include "transport/ucx/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Appends a name to "a+b" unless it is there. */
static void path_add(char *out, size_t size, const char *name, size_t name_size)
{
    size_t used = strlen(out);
    char word[32];

    if (name_size == 0 || name_size >= sizeof(word))
        return;
    memcpy(word, name, name_size);
    word[name_size] = '\0';
    if (strstr(out, word) == NULL)
        snprintf(out + used, size - used, "%s%s", used > 0 ? "+" : "", word);
}

#ifdef TR_HAVE_UCX_TRANSPORTS

static void path_read(char *out, size_t size, ucp_ep_h ep)
{
    ucp_transport_entry_t entries[8];
    ucp_ep_attr_t attr = {
        .field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
        .transports = {.entries = entries,
                       .num_entries = sizeof(entries) / sizeof(entries[0]),
                       .entry_size = sizeof(entries[0])},
    };

    if (ucp_ep_query(ep, &attr) != UCS_OK)
        return;
    for (unsigned i = 0; i < attr.transports.num_entries; i++)
        path_add(out, size, entries[i].transport_name, strlen(entries[i].transport_name));
}

#else

/* UCX 1.13 only prints: "#  lane[0]:  2:posix/memory.0 md[1]  -> ...". */
static void path_read(char *out, size_t size, ucp_ep_h ep)
{
    char *text = NULL;
    size_t text_size = 0;
    FILE *stream = open_memstream(&text, &text_size);

    if (stream == NULL)
        return;
    ucp_ep_print_info(ep, stream);
    if (fclose(stream) == 0) {
        for (const char *lane = strstr(text, "lane["); lane != NULL; lane = strstr(lane, "lane[")) {
            lane += strcspn(lane, ":\n");
            lane += strspn(lane, ": ");
            lane += strcspn(lane, ":\n"); /* number of the resource */
            lane += strspn(lane, ":");
            path_add(out, size, lane, strcspn(lane, "/ \n"));
        }
    }
    free(text);
}

#endif

void ucx_path_describe(char *out, size_t size, ucp_ep_h ep)
{
    out[0] = '\0';
    path_read(out, size, ep);
    if (out[0] == '\0')
        snprintf(out, size, "unknown");
}
