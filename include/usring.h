/* All functions of libusring.so that Linux does not have:
 * - usring_aio.h: polled AIO for programs that use libaio;
 * - usring_swap.h: swap regions, memory of which only a part is resident;
 * - usring_inject.h: faults on demand, for a program's own tests. */
#ifndef USRING_H
#define USRING_H

#include "usring_aio.h"
#include "usring_inject.h"
#include "usring_swap.h"

#endif
