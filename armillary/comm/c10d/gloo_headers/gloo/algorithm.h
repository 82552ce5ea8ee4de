// gloo/algorithm.h: nothing of it is used; see gloo/context.h.
#pragma once
