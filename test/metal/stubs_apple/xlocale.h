// Of macOS; libc++ includes it there.
#pragma once
