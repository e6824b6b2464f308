#pragma once

#include "runtime.h"

// Called as functions of the message's type.
extern "C" {
void objc_msgSend(void);
void objc_msgSend_fpret(void);
void objc_msgSend_stret(void);
}
