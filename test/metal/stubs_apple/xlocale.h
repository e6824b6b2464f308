// Of the functions that take a locale, those that libc++ uses and glibc has not.
#pragma once

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

extern "C" {
struct lconv* localeconv_l(locale_t);
int asprintf_l(char**, locale_t, const char*, ...) __attribute__((format(printf, 3, 4)));
int snprintf_l(char*, size_t, locale_t, const char*, ...) __attribute__((format(printf, 4, 5)));
int sscanf_l(const char*, locale_t, const char*, ...) __attribute__((format(scanf, 3, 4)));
}
