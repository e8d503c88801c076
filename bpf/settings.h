/* SPDX-License-Identifier: GPL-2.0 */
/* What user space decides before it loads the programs. */
#ifndef STEADFAST_SETTINGS_H
#define STEADFAST_SETTINGS_H

#include "abi.h"

const volatile struct settings settings = {0};

#endif
