/* fingerprint.h - the bits that every machine must give. */
#ifndef TR_TESTS_KERNELS_FINGERPRINT_H
#define TR_TESTS_KERNELS_FINGERPRINT_H

/* tr_kernels_fingerprint of every cpu variant on every machine. It changes only when the arithmetic
 * of an operation or the self-test (kernels/fingerprint.c) is changed on purpose; nodes of
 * different versions then do not mirror each other. */
#define CPU_FINGERPRINT 0xbb742fbf47806df4u

#endif
