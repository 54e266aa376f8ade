/* fake_node.c - a process that answers the admin commands like a node: fake_node URL URL INDEX
 * MODEL. Ends when it is asked to shut down, or after a minute. */
#include "tests/api/fake_cluster.h"

#include "api/admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    alarm(60);
    const char *urls[2] = {argv[1], argv[2]};
    tr_cluster *cluster = fake_cluster_open(urls, (uint32_t)atoi(argv[3]), argv[4]);
    tr_admin_register(cluster);
    fake_cluster_start(cluster);
    printf("ready\n");
    fflush(stdout);
    while (!fake_cluster_was_asked_to_stop(cluster))
        usleep(1000);
    fake_cluster_close(cluster);
    return 0;
}
