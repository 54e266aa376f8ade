/* tasks.h - threads of which one runs at a time: whoever resumes one waits until it gives way.
 *
 * They are threads of the machine, so that sanitizers and thread-local memory see what they know;
 * but nothing is ever concurrent, and their order is their scheduler's alone. */
#ifndef TR_TESTS_SIM_TASKS_H
#define TR_TESTS_SIM_TASKS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sim_task sim_task;

/* A task that does nothing before its first resume. */
sim_task *sim_task_new(void *(*run)(void *), void *arg);

/* Lets it run until it gives way or ends. Not by a task. */
void sim_task_resume(sim_task *task);

/* The task that calls gives way until it is resumed. */
void sim_task_give_way(void);

/* The one that calls; NULL outside of tasks. */
sim_task *sim_task_self(void);

bool sim_task_has_ended(const sim_task *task);

/* It has ended. */
void sim_task_free(sim_task *task);

/* Ends the threads that are kept for later tasks. */
void sim_tasks_close(void);

#endif
