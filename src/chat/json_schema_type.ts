/**
 * The TypeScript type of the values of a JSON Schema given `as const`. It follows what the grammar allows: properties
 * that are not required are optional, further properties do not exist.
 */

export type FromJsonSchema<S> = S extends { readonly const: infer C }
  ? C
  : S extends { readonly enum: readonly (infer E)[] }
    ? E
    : S extends { readonly anyOf: readonly (infer A)[] }
      ? FromJsonSchema<A>
      : S extends { readonly oneOf: readonly (infer A)[] }
        ? FromJsonSchema<A>
        : S extends { readonly type: infer T }
          ? OfType<T extends readonly (infer One)[] ? One : T, S>
          : unknown

type OfType<T, S> = T extends 'string'
  ? string
  : T extends 'number' | 'integer'
    ? number
    : T extends 'boolean'
      ? boolean
      : T extends 'null'
        ? null
        : T extends 'array'
          ? S extends { readonly items: infer I }
            ? FromJsonSchema<I>[]
            : unknown[]
          : T extends 'object'
            ? OfObject<S>
            : unknown

type OfObject<S> = S extends { readonly properties: infer P }
  ? Flat<
      { [K in keyof P as K extends RequiredKeys<S> ? K : never]: FromJsonSchema<P[K]> } & {
        [K in keyof P as K extends RequiredKeys<S> ? never : K]?: FromJsonSchema<P[K]>
      }
    >
  : Record<string, never>

type RequiredKeys<S> = S extends { readonly required: readonly (infer K)[] } ? K : never

/** One object type instead of an intersection, for readable hints. */
type Flat<T> = { [K in keyof T]: T[K] }
