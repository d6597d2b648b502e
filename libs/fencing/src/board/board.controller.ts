import type { ServerResponse } from 'node:http';
import {
  Body,
  type CanActivate,
  Controller,
  Get,
  Inject,
  Post,
  Query,
  Req,
  Res,
  SetMetadata,
  type Type,
  UseGuards,
  VERSION_NEUTRAL,
} from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';
import { FencingError } from '../core/errors.js';
import { Board } from './board.js';
import { BoardStreams, MOST_VISITORS } from './board-streams.js';
import { readViewRequest } from './board-view.js';
import { PAGE_HEADERS, PAGE_HTML } from './page/page.js';

/** As much of a response as is needed: Fastify's has the plain one inside. */
interface BoardResponse {
  readonly raw?: ServerResponse;
  hijack?(): void;
}

type Answer = Readonly<Record<string, unknown>>;

/**
 * The controller of one board. It answers by itself, not by what its methods return: an interceptor of the application that wraps
 * every result would otherwise wrap the page.
 */
export function boardController(path: string, guards: (Type<CanActivate> | CanActivate)[]): Type {
  @Controller({ path, version: VERSION_NEUTRAL })
  @UseGuards(...guards)
  // What hides a controller from the documents of @nestjs/swagger.
  @SetMetadata('swagger/apiExcludeController', [true])
  class FencingBoardController {
    constructor(
      @Inject(Board) private readonly board: Board,
      @Inject(BoardStreams) private readonly streams: BoardStreams,
      @Inject(HttpAdapterHost) private readonly adapters: HttpAdapterHost,
    ) {}

    @Get()
    page(@Res() response: BoardResponse): void {
      this.answer(response, 200, PAGE_HTML, PAGE_HEADERS);
    }

    @Get('api/view')
    view(@Query() query: Answer, @Res() response: BoardResponse): void {
      this.json(response, 200, { ...this.board.view(readViewRequest(query)) });
    }

    @Get('api/events')
    events(@Query() query: Answer, @Res() response: BoardResponse): void {
      if (this.streams.isFull) {
        return this.json(response, 503, { problem: `${MOST_VISITORS} visitors watch the board already.` });
      }
      response.hijack?.();
      this.streams.open(response.raw ?? (response as ServerResponse), readViewRequest(query));
    }

    @Post('api/revoke')
    async revoke(
      @Body() body: unknown,
      @Req() request: unknown,
      @Res() response: BoardResponse,
    ): Promise<void> {
      const { key, reason } = (body ?? {}) as Record<string, unknown>;
      if (typeof key !== 'string' || typeof reason !== 'string' || reason.trim() === '')
        return this.json(response, 400, { problem: 'Send { "key": "…", "reason": "…" } as JSON.' });
      try {
        const revocation = await this.board.revoke(key, reason, request);
        this.json(response, 200, { ...revocation });
      } catch (error) {
        // Messages of the package name no key; of anything else the visitor learns nothing.
        if (!(error instanceof FencingError)) throw error;
        const status = error.code === 'STORE_UNAVAILABLE' ? 503 : 400;
        this.json(response, status, { problem: error.message, code: error.code });
      }
    }

    private json(response: BoardResponse, status: number, answer: Answer): void {
      this.answer(response, status, JSON.stringify(answer), {
        'Content-Type': 'application/json; charset=utf-8',
        'Cache-Control': 'no-store',
        'X-Content-Type-Options': 'nosniff',
      });
    }

    private answer(
      response: BoardResponse,
      status: number,
      body: string,
      headers: Readonly<Record<string, string>>,
    ): void {
      const { httpAdapter } = this.adapters;
      for (const [name, value] of Object.entries(headers)) httpAdapter.setHeader(response, name, value);
      httpAdapter.reply(response, body, status);
    }
  }
  return FencingBoardController;
}
